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
    assert_eq!(fixed_texts().last(), Some(&*Error::NotWritable.to_string()));
}

#[test]
fn a_repeated_word_is_short_and_printable() {
    let long = EchoedWord::from(&[b'x'; 99][..]);
    let odd = EchoedWord::from(&b"FO\r\n-O b"[..]);
    for (error, text) in [
        (Error::UnknownOption(odd), "ERR syntax error: unknown option FO??-O?b".into()),
        (
            Error::UnknownOption(long),
            format!("ERR syntax error: unknown option {}", "x".repeat(24)),
        ),
        (Error::NoPolicy(long), format!("NOPOLICY no policy has the name {}", "x".repeat(64))),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
