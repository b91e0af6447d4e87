//! The title and background of all SVG files, and other colours in a browser that prefers dark pages.

use std::fmt::Write;

pub const WIDTH: i64 = 960;
/// The margin to the left and to the right of everything.
pub const MARGIN: i64 = 20;

pub const INK: &str = "#222";
pub const PAPER: &str = "#fff";

/// Begins a file with its title. `dark` has each further colour, and the one that replaces it on dark pages.
pub fn begin(height: i64, title: &str, dark: &[(&str, &str)]) -> String {
    let rule = |(light, dark): &(&str, &str)| {
        let rule = |attribute| format!("[{attribute}=\"{light}\"] {{ {attribute}: {dark} }}\n");
        ["fill", "stroke"].map(rule).concat()
    };
    let rules: String =
        [(PAPER, "#14171b"), (INK, "#e7eaef")].iter().chain(dark).map(rule).collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <title>{title}</title>\n\
         <style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{PAPER}\"/>\n"
    );
    text(&mut svg, (MARGIN, 26), " font-size=\"17\" font-weight=\"bold\"", title);
    svg
}

/// Appends a text with further attributes.
pub fn text(svg: &mut String, (x, y): (i64, i64), more: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\"{more}>{text}</text>");
}
