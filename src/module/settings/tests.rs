use super::*;
use std::sync::Mutex;

#[test]
fn a_setting_that_takes_the_rest_gets_all_words_after_its_name() {
    static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static SWITCH: Switch = Switch::off();
    static VALUE: TextSetting = TextSetting {
        default: b"",
        get: || TEXT.lock().unwrap().clone(),
        set: |value| {
            *TEXT.lock().unwrap() = value.to_vec();
            Ok(())
        },
    };
    let settings = [
        Setting::new(c"switch", &SWITCH),
        Setting { takes_rest: true, ..Setting::new(c"all", &VALUE) },
    ];
    let apply = |line: &str| {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        apply_arguments(&settings, &words).map(|applied| applied.len())
    };
    assert_eq!(apply("switch YES ratelimit.all a 1 2; switch no"), Ok(2));
    assert_eq!(*TEXT.lock().unwrap(), b"a 1 2; switch no");
    assert!(SWITCH.get());
    assert_eq!(apply("switch yes switch no"), Ok(1));
    assert!(!SWITCH.get());
    assert!(apply("switch").is_err());
    assert!(apply("switch 1").is_err());
    assert!(apply("all").is_err());
}
