//! The title, background and colours of all SVG files.

use std::fmt::Write;

/// The margin to the left and to the right of everything.
pub const MARGIN: i64 = 20;

pub const PAPER: &str = "#fff";
pub const INK: &str = "#222";
pub const FAINT: &str = "#ddd";
pub const GREY: &str = "#666";
pub const BLUE: &str = "#0072b2";
pub const INDIGO: &str = "#3b3fbf";
pub const GREEN: &str = "#007a58";
pub const OLIVE: &str = "#44761f";
pub const ORANGE: &str = "#c04a00";
pub const OCHRE: &str = "#8a6500";
pub const PINK: &str = "#b33573";

/// Each colour, and the one that replaces it on dark pages.
const DARK: [(&str, &str); 11] = [
    (PAPER, "#14171b"),
    (INK, "#e7eaef"),
    (FAINT, "#363c46"),
    (GREY, "#a5aebc"),
    (BLUE, "#57b6f0"),
    (INDIGO, "#a3a6ff"),
    (GREEN, "#3ccf9f"),
    (OLIVE, "#a2d477"),
    (ORANGE, "#ff9257"),
    (OCHRE, "#e3bc55"),
    (PINK, "#f58fbf"),
];

/// Begins a file with its size and title.
pub fn begin((width, height): (i64, i64), title: &str) -> String {
    let rule = |(light, dark): &(&str, &str)| {
        let rule = |attribute| format!("[{attribute}=\"{light}\"] {{ {attribute}: {dark} }}\n");
        ["fill", "stroke"].map(rule).concat()
    };
    let rules: String = DARK.iter().map(rule).collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <title>{title}</title>\n\
         <style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"{PAPER}\"/>\n"
    );
    text(&mut svg, (MARGIN, 26), " font-size=\"17\" font-weight=\"bold\"", title);
    svg
}

/// Appends a path with its other attributes.
pub fn path(svg: &mut String, path: &str, more: &str) {
    let _ = writeln!(svg, "<path d=\"{path}\" {more}/>");
}

/// Appends a text with further attributes.
pub fn text(svg: &mut String, (x, y): (i64, i64), more: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\"{more}>{text}</text>");
}
