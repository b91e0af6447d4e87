use super::*;

/// The fixed texts. A new error is among them without being listed again.
fn fixed_texts() -> impl Iterator<Item = &'static str> {
    let attributes = include_str!("../error.rs").split("#[error(\"").skip(1);
    let texts = attributes.filter_map(|attribute| attribute.split("\")]\n").next());
    texts.filter(|text| !text.contains('{'))
}

#[test]
fn every_text_begins_with_its_code() {
    for text in fixed_texts() {
        let code = text.split(' ').next().unwrap();
        let codes = ["ERR", "DUPLICATE", "WRONGTYPE", "NOPOLICY", "CROSSSLOT", "TRYAGAIN"];
        assert!(codes.contains(&code), "{text}");
    }
}

#[test]
fn every_text_is_in_the_documentation() {
    let page = include_str!("../../../../docs/commands.md");
    for text in fixed_texts() {
        assert!(page.contains(text.strip_prefix("ERR ").unwrap_or(text)), "{text}");
    }
    assert_eq!(fixed_texts().last(), Some(&*Error::InUse.to_string()));
}

#[test]
fn errors_name_the_option_at_fault() {
    let long = [b'x'; 99];
    for (error, text) in [
        (
            Error::UnknownOption(EchoedWord::from(&b"FO\r\n-O"[..])),
            "ERR syntax error: unknown option FO??-O",
        ),
        (
            Error::UnknownOption(EchoedWord::from(&long[..])),
            "ERR syntax error: unknown option xxxxxxxxxxxxxxxxxxxxxxxx",
        ),
        (
            Error::NoPolicy(EchoedWord::from(&[b'x'; 70][..])),
            &format!(
                "NOPOLICY no policy has the name {}",
                "x".repeat(64)
            ),
        ),
        (
            Error::NoPolicy(EchoedWord::from(&b"a\r b"[..])),
            "NOPOLICY no policy has the name a??b",
        ),
        (
            Error::NoValue("BUCKETS", &Error::OptionInteger("BUCKETS", 1, 65_536)),
            "ERR BUCKETS needs a value: BUCKETS must be an integer from 1 to 65536",
        ),
        (
            Error::NoValue("ID", &Error::InvalidId),
            "ERR ID needs a value: an id must have 1 to 64 bytes",
        ),
        (
            Error::OptionDuration("BLOCK", 0),
            "ERR BLOCK must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, from 0 to a year (31557600000ms)",
        ),
        (
            Error::OptionDuration("LEASE", 1),
            "ERR LEASE must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, from 1ms to a year (31557600000ms)",
        ),
        (Error::Twice("MS"), "ERR syntax error: MS is given more than once"),
        (
            Error::NotTogether("BUCKETS", "FIXED"),
            "ERR BUCKETS and FIXED must not be used together",
        ),
        (
            Error::QuantityBelow("ATMOST", 0),
            "ERR ATMOST must not be used with a quantity below 0",
        ),
        (Error::Needs("TZ", "FIXED"), "ERR TZ must be used with FIXED"),
        (Error::InvalidLimit, "ERR limit must be an integer from 0 to 9223372036854775807"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
