use super::*;

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
