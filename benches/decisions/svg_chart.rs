//! The charts of docs/benchmarks.md, as SVG.

use std::fmt::Write;
use std::ops::Range;

#[path = "../pictures/drawn/svg.rs"]
mod svg;

use crate::report::SET_EX;
use svg::{
    text, BLUE, FAINT, GREEN, GREY, INDIGO, INK, MARGIN, OCHRE, OLIVE, ORANGE, PAPER, PINK, WIDTH,
};

/// The height of the plot in a chart of lines, and of a row in a chart of rows.
const PLOT: i64 = 400;
const ROW: i64 = 30;
/// Above the plot, and below it.
const HEAD: i64 = 70;
const FOOT: i64 = 95;

const OURS: [&str; 4] = [BLUE, INDIGO, GREEN, OLIVE];
const PEERS: [&str; 3] = [ORANGE, OCHRE, PINK];

/// The shades for the module, for plain commands of the server, and for what people use today.
fn shades(name: &str) -> &'static [&'static str] {
    match name {
        "INCR" | SET_EX => &[GREY],
        _ if name.starts_with("RL.") => &OURS,
        _ => &PEERS,
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0.
    Linear,
    Log,
}

/// The quantity along a side of the chart, with its unit.
#[derive(Clone, Copy)]
pub struct Axis {
    pub name: &'static str,
    pub scale: Scale,
}

impl Axis {
    fn label(self) -> String {
        match self.scale {
            Scale::Linear => self.name.to_string(),
            Scale::Log => format!("{} (logarithmic scale)", self.name),
        }
    }
}

/// Maps the values of an axis to pixels.
struct Ruler {
    scale: Scale,
    ends: Range<f64>,
    /// The pixels of both ends.
    pixels: (i64, i64),
    /// Round values, at which the axis has a mark.
    marks: Vec<f64>,
}

impl Ruler {
    /// A ruler with room for all the values.
    fn new(scale: Scale, values: impl Iterator<Item = f64>, pixels: (i64, i64)) -> Ruler {
        let extremes = |(low, high): (f64, f64), value| (low.min(value), high.max(value));
        let (low, high) = values.fold((f64::MAX, f64::MIN), extremes);
        let (ends, mut marks) = match scale {
            Scale::Linear => {
                let power = 10_f64.powf((high / 6.0).log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
                let step = steps.into_iter().find(|step| high / step <= 6.0).unwrap_or(high);
                (0.0..high * 1.04, (0..=6).map(|mark| f64::from(mark) * step).collect::<Vec<_>>())
            }
            Scale::Log => {
                let room = (high / low).powf(0.03).max(1.04);
                let steps: &[f64] = if high / low < 100.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
                let marks = decades
                    .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
                (low / room..high * room, marks.collect())
            }
        };
        marks.retain(|mark| ends.contains(mark));
        Ruler { scale, ends, pixels, marks }
    }

    fn at(&self, value: f64) -> i64 {
        let Range { start, end } = self.ends;
        let part = match self.scale {
            Scale::Linear => (value - start) / (end - start),
            Scale::Log => (value / start).ln() / (end / start).ln(),
        };
        let (from, to) = self.pixels;
        from + (part * (to - from) as f64).round() as i64
    }
}

/// A number for people: 1,000,000 and 0.5.
pub fn number(value: f64) -> String {
    let rounded = format!("{value:.*}", if value < 10.0 { 2 } else { 0 });
    let (whole, fraction) = rounded.split_once('.').unwrap_or((&rounded, ""));
    let digits = whole.len();
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (digits - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    match fraction.trim_end_matches('0') {
        "" => text,
        fraction => format!("{text}.{fraction}"),
    }
}

type Point = (i64, i64);

/// Appends a line through points.
fn line(svg: &mut String, points: &[Point], colour: &str, width: i64) {
    let points: String = points.iter().map(|(x, y)| format!("{x},{y} ")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        points.trim_end()
    );
}

/// Appends a mark: a dot, a ring or a triangle.
fn mark(svg: &mut String, kind: usize, (x, y): Point, colour: &str) {
    let _ = match kind {
        0 => writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"/>"),
        1 => writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{PAPER}\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        ),
        _ => writeln!(svg, "<path d=\"M{x} {}l6 10h-12z\" fill=\"{colour}\"/>", y - 6),
    };
}

/// Appends text that is vertically centred on a point. `anchor` is the end of the text that is placed there.
fn label(svg: &mut String, (x, y): Point, anchor: &str, colour: &str, words: &str) {
    text(svg, (x, y + 5), &format!(" text-anchor=\"{anchor}\" fill=\"{colour}\""), words);
}

/// Appends the horizontal axis, with faint lines at its marks.
fn axis_across(svg: &mut String, axis: Axis, ruler: &Ruler, top: i64, bottom: i64) {
    for &mark in &ruler.marks {
        let x = ruler.at(mark);
        line(svg, &[(x, top), (x, bottom)], FAINT, 1);
        label(svg, (x, bottom + 16), "middle", INK, &number(mark));
    }
    let (left, right) = ruler.pixels;
    line(svg, &[(left, top), (left, bottom), (right, bottom)], INK, 1);
    label(svg, ((left + right) / 2, bottom + 40), "middle", INK, &axis.label());
}

/// The figures of one command: a point for each size.
pub struct ChartLine {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// The figures of one command: one for each mark of the chart.
pub struct ChartRow {
    pub name: String,
    pub figures: Vec<f64>,
}

/// Draws lines, each with its name at its end. They share the sizes, which are marked.
pub fn draw_lines(title: &str, footer: &str, [x, y]: [Axis; 2], lines: &[ChartLine]) -> String {
    let (bottom, left, right) = (HEAD + PLOT, MARGIN + 70, WIDTH - 215);
    let mut svg = svg::begin(bottom + FOOT, title);
    label(&mut svg, (MARGIN, bottom + FOOT - 18), "start", INK, footer);
    label(&mut svg, (MARGIN, HEAD - 18), "start", INK, &y.label());
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let mut across = Ruler::new(x.scale, points().map(|point| point.0), (left, right));
    across.marks = points().map(|point| point.0).collect();
    across.marks.sort_by(f64::total_cmp);
    across.marks.dedup();
    let upwards = Ruler::new(y.scale, points().map(|point| point.1), (bottom, HEAD));
    for &mark in &upwards.marks {
        let y = upwards.at(mark);
        line(&mut svg, &[(left, y), (right, y)], FAINT, 1);
        label(&mut svg, (left - 8, y), "end", INK, &number(mark));
    }
    axis_across(&mut svg, x, &across, HEAD, bottom);
    let mut ends = Vec::new();
    for (index, ChartLine { name, points }) in lines.iter().enumerate() {
        let alike = lines[..index].iter().filter(|line| shades(&line.name) == shades(name)).count();
        let colour = shades(name)[alike];
        let at: Vec<Point> = points.iter().map(|&(x, y)| (across.at(x), upwards.at(y))).collect();
        line(&mut svg, &at, colour, 2);
        at.iter().for_each(|&at| mark(&mut svg, 0, at, colour));
        ends.extend(at.last().map(|&(x, y)| (y, x, name, colour)));
    }
    ends.sort();
    let heights = apart(ends.iter().map(|end| end.0).collect());
    for ((y, x, name, colour), height) in ends.into_iter().zip(heights) {
        line(&mut svg, &[(x + 7, y), (x + 18, height), (x + 22, height)], colour, 1);
        label(&mut svg, (x + 26, height), "start", colour, name);
    }
    svg + "</svg>\n"
}

/// Draws a bar for each row, or a mark of its own kind for each of several figures.
pub fn draw_rows(title: &str, footer: &str, x: Axis, marks: &[&str], rows: &[ChartRow]) -> String {
    let (left, room) = (MARGIN + 345, if marks.len() > 1 { 150 } else { 80 });
    let bottom = HEAD + ROW * rows.len() as i64;
    let mut svg = svg::begin(bottom + FOOT, title);
    label(&mut svg, (MARGIN, bottom + FOOT - 18), "start", INK, footer);
    let figures = rows.iter().flat_map(|row| row.figures.iter().copied());
    let across = Ruler::new(x.scale, figures, (left, WIDTH - room));
    axis_across(&mut svg, x, &across, HEAD, bottom);
    if marks.len() > 1 {
        for (kind, name) in marks.iter().enumerate() {
            let at = (left + 8 + 80 * kind as i64, HEAD - 16);
            mark(&mut svg, kind, at, INK);
            label(&mut svg, (at.0 + 10, at.1), "start", INK, name);
        }
    }
    for (ChartRow { name, figures }, index) in rows.iter().zip(0..) {
        let (middle, colour) = (HEAD + ROW * index + ROW / 2, shades(name)[0]);
        let at: Vec<Point> = figures.iter().map(|&figure| (across.at(figure), middle)).collect();
        let Some(&(last, _)) = at.last() else { continue };
        label(&mut svg, (left - 8, middle), "end", colour, name);
        if marks.len() > 1 {
            line(&mut svg, &at, colour, 2);
            at.into_iter().enumerate().for_each(|(kind, at)| mark(&mut svg, kind, at, colour));
        } else {
            line(&mut svg, &[(left, middle), (last, middle)], colour, 18);
        }
        let figures: Vec<String> = figures.iter().map(|&figure| number(figure)).collect();
        label(&mut svg, (last + 10, middle), "start", INK, &figures.join(" / "));
    }
    svg + "</svg>\n"
}

/// Moves heights (sorted) apart, so that texts do not overlap.
fn apart(mut heights: Vec<i64>) -> Vec<i64> {
    const LINE: i64 = 17;
    for _ in 0..100 {
        for index in 1..heights.len() {
            let short = LINE - (heights[index] - heights[index - 1]);
            if short > 0 {
                heights[index - 1] -= (short + 1) / 2;
                heights[index] += short / 2;
            }
        }
    }
    heights
}
