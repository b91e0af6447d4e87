use super::*;

#[test]
fn the_line_has_the_changed_settings_in_quotes_if_needed() {
    let changed = [("lease", b"5".to_vec()), ("policies", b"a WINDOW 5 60;\n\"b\\ \xff".to_vec())];
    assert_eq!(
        load_line(b"/a b/c.so", &changed, true),
        r#"MODULE LOADEX "/a b/c.so" CONFIG ratelimit.lease 5 CONFIG ratelimit.policies "a WINDOW 5 60;\x0a\"b\\ \xff""#
    );
    assert_eq!(
        load_line(b"/c.so", &changed[..1], false),
        "MODULE LOAD /c.so allow-unload yes lease 5"
    );
    assert_eq!(quoted(b""), "\"\"");
}

#[test]
fn a_long_line_is_cut_at_spaces_into_pieces_that_fit_the_log() {
    let line = (0..1_000).map(|number| format!("word{number}")).collect::<Vec<_>>().join(" ");
    let pieces = pieces(&line);
    assert!(pieces.len() > 5 && pieces.iter().all(|piece| piece.len() <= PIECE), "{pieces:?}");
    assert_eq!(pieces.join(" "), line);
    assert_eq!(super::pieces("MODULE LOAD x"), ["MODULE LOAD x"]);
    let long = [";".repeat(PIECE * 2), "a  b".into()].join(" ");
    let pieces = super::pieces(&long);
    assert_eq!(pieces.join(" ").replace("; ;", ";;"), long);
    assert!(pieces.iter().all(|piece| piece.len() <= PIECE));
}
