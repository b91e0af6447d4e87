//! Charts as SVG. Each has a background of its own: white, or dark in a browser that prefers dark pages.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type Plot<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<Ruler, Ruler>>;

const WIDTH: u32 = 960;
/// Of the plot in a chart of lines.
const HEIGHT: u32 = 400;
/// Of a row in a chart of rows.
const ROW: u32 = 30;
/// Above and below the plot.
const HEAD: u32 = 70;
const FOOT: u32 = 40;
const AXIS: u32 = 55;
/// To the right of the plot, for what the lines and rows are.
const LABELS: u32 = 215;
const MARGIN: i32 = 20;

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Each colour, and what replaces it in a browser that prefers dark pages.
const DARK: [(RGBColor, &str); 11] = [
    (WHITE, "#14171B"),
    (INK, "#E7EAEF"),
    (FAINT, "#363C46"),
    (OURS[0], "#57B6F0"),
    (OURS[1], "#A3A6FF"),
    (OURS[2], "#3CCF9F"),
    (OURS[3], "#A2D477"),
    (PEERS[0], "#FF9257"),
    (PEERS[1], "#E3BC55"),
    (PEERS[2], "#F58FBF"),
    (PLAIN, "#A5AEBC"),
];

const OURS: [RGBColor; 4] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x3b, 0x3f, 0xbf),
    RGBColor(0x00, 0x86, 0x62),
    RGBColor(0x5a, 0x96, 0x2c),
];
const PEERS: [RGBColor; 3] =
    [RGBColor(0xd5, 0x5e, 0x00), RGBColor(0xb8, 0x86, 0x00), RGBColor(0xc2, 0x40, 0x7e)];
const PLAIN: RGBColor = RGBColor(0x77, 0x77, 0x77);

/// Whose figures these are. In a chart of lines each of one side has another shade.
#[derive(Clone, Copy)]
pub enum Whose {
    /// The module's.
    Ours(usize),
    /// What people use today.
    Peers(usize),
    /// A plain command of the server.
    Plain,
}

impl Whose {
    fn colour(self) -> RGBColor {
        match self {
            Whose::Ours(shade) => OURS[shade],
            Whose::Peers(shade) => PEERS[shade],
            Whose::Plain => PLAIN,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0.
    Linear,
    Log,
}

/// What is measured along a side of the chart, with its unit.
#[derive(Clone, Copy)]
pub struct Axis {
    pub name: &'static str,
    pub scale: Scale,
}

impl Axis {
    /// The text at the axis.
    fn label(self) -> String {
        match self.scale {
            Scale::Linear => self.name.to_string(),
            Scale::Log => format!("{} (logarithmic scale)", self.name),
        }
    }

    /// A ruler with room for all the values, marked at round ones.
    fn ruler(self, values: impl Iterator<Item = f64>) -> Ruler {
        let extremes = |(low, high): (f64, f64), value| (low.min(value), high.max(value));
        let (low, high) = values.fold((f64::MAX, f64::MIN), extremes);
        let (ends, marks): (_, Vec<f64>) = match self.scale {
            Scale::Linear => {
                let power = 10_f64.powf((high / 6.0).log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
                let step = steps.into_iter().find(|step| high / step <= 6.0).unwrap_or(high);
                (0.0..high * 1.04, (0..=6).map(|mark| f64::from(mark) * step).collect())
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
        let marks = marks.into_iter().filter(|mark| ends.contains(mark)).collect();
        Ruler { scale: self.scale, ends, marks }
    }
}

/// A side of the chart: where a value stands, and which are marked.
struct Ruler {
    scale: Scale,
    ends: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let Range { start, end } = self.ends;
        let part = match self.scale {
            Scale::Linear => (value - start) / (end - start),
            Scale::Log => (value / start).ln() / (end / start).ln(),
        };
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.marks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.ends.clone()
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, value: &f64) -> String {
        number(*value)
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
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        text
    } else {
        format!("{text}.{fraction}")
    }
}

fn style(size: i32, colour: RGBColor, across: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour).pos(Pos::new(across, VPos::Center))
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), style: TextStyle<'static>) -> Drawn {
    Ok(area.draw(&Text::new(text.to_string(), at, style))?)
}

/// A chart still without its contents.
pub struct Chart<'a> {
    pub path: &'a Path,
    pub title: &'a str,
    /// How to repeat it.
    pub footer: &'a str,
}

/// Figures that hang together.
pub struct ChartLine {
    pub name: String,
    pub whose: Whose,
    pub points: Vec<(f64, f64)>,
}

/// What was measured of one command, one figure for each mark of the chart.
pub struct ChartRow {
    pub name: String,
    pub whose: Whose,
    pub figures: Vec<f64>,
}

impl Chart<'_> {
    fn begin(&self, height: u32) -> Result<Area<'_>, Box<dyn Error>> {
        let area = SVGBackend::new(self.path, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        write(&area, self.title, (MARGIN, 24), style(20, INK, HPos::Left))?;
        write(&area, self.footer, (MARGIN, height as i32 - 18), style(13, INK, HPos::Left))?;
        Ok(area)
    }

    /// Writes the file, with the colours for dark pages as a style.
    fn finish(&self, area: &Area<'_>) -> Drawn {
        area.present()?;
        let drawn = fs::read_to_string(self.path)?;
        let (head, rest) = drawn.split_once('\n').ok_or("an SVG without lines")?;
        let rule = |(RGBColor(red, green, blue), dark)| {
            let light = format!("#{red:02X}{green:02X}{blue:02X}");
            let rule = |attribute| format!("[{attribute}=\"{light}\"] {{ {attribute}: {dark} }}\n");
            ["fill", "stroke"].map(rule).concat()
        };
        let rules: String = DARK.into_iter().map(rule).collect();
        let style = format!("<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>");
        Ok(fs::write(self.path, format!("{head}\n{style}\n{rest}"))?)
    }

    /// Draws lines, each with its name at its end. They share the sizes, which are marked.
    pub fn lines(&self, x: Axis, y: Axis, lines: &[ChartLine]) -> Drawn {
        let area = self.begin(HEAD + HEIGHT + AXIS + FOOT)?;
        let points = || lines.iter().flat_map(|line| line.points.iter());
        let mut across = x.ruler(points().map(|point| point.0));
        across.marks = points().map(|point| point.0).collect();
        across.marks.sort_by(f64::total_cmp);
        across.marks.dedup();
        let upwards = y.ruler(points().map(|point| point.1));
        let mut chart = plot(&area, x, [across, upwards], 70, LABELS)?;
        write(&area, &y.label(), (MARGIN, HEAD as i32 - 18), style(14, INK, HPos::Left))?;
        let mut ends = Vec::new();
        for line in lines {
            let colour = line.whose.colour();
            let points = || line.points.iter().copied();
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
            chart.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?;
            if let Some(end) = line.points.last() {
                ends.push((chart.backend_coord(end), line));
            }
        }
        ends.sort_by_key(|((_, y), _)| *y);
        let heights = apart(ends.iter().map(|((_, y), _)| *y).collect());
        for (((x, y), line), height) in ends.into_iter().zip(heights) {
            let colour = line.whose.colour();
            let leader = vec![(x + 5, y), (x + 18, height), (x + 22, height)];
            area.draw(&PathElement::new(leader, colour.mix(0.6)))?;
            write(&area, &line.name, (x + 26, height), style(13, colour, HPos::Left))?;
        }
        self.finish(&area)
    }

    /// Draws a bar for each row, or a dot for each of several marks.
    pub fn rows(&self, x: Axis, marks: &[&str], rows: &[ChartRow]) -> Drawn {
        const NAMES: u32 = 320;
        let area = self.begin(HEAD + ROW * rows.len() as u32 + AXIS + FOOT)?;
        let figures = || rows.iter().flat_map(|row| row.figures.iter().copied());
        let height = rows.len() as f64;
        let upwards = Ruler { scale: Scale::Linear, ends: 0.0..height, marks: Vec::new() };
        let room = if marks.len() > 1 { 150 } else { 80 };
        let chart = plot(&area, x, [x.ruler(figures()), upwards], NAMES, room)?;
        let shape = |mark: usize, at: (i32, i32), colour: RGBColor| -> Drawn {
            match mark {
                0 => area.draw(&Circle::new(at, 5, colour.filled()))?,
                1 => {
                    area.draw(&Circle::new(at, 5, WHITE.filled()))?;
                    area.draw(&Circle::new(at, 5, colour.stroke_width(2)))?;
                }
                _ => area.draw(&TriangleMarker::new(at, 6, colour.filled()))?,
            }
            Ok(())
        };
        let left = MARGIN + NAMES as i32;
        if marks.len() > 1 {
            for (index, mark) in marks.iter().enumerate() {
                let at = (left + 8 + 80 * index as i32, HEAD as i32 - 16);
                shape(index, at, INK)?;
                write(&area, mark, (at.0 + 10, at.1), style(13, INK, HPos::Left))?;
            }
        }
        for (index, row) in rows.iter().enumerate() {
            let middle = height - index as f64 - 0.5;
            let colour = row.whose.colour();
            let at: Vec<(i32, i32)> =
                row.figures.iter().map(|&figure| chart.backend_coord(&(figure, middle))).collect();
            let (Some(&first), Some(&last)) = (at.first(), at.last()) else { continue };
            let name = style(14, colour, HPos::Right);
            write(&area, &row.name, (left - 8, first.1), name)?;
            if marks.len() > 1 {
                area.draw(&PathElement::new(vec![first, last], colour.stroke_width(2)))?;
                for (mark, &at) in at.iter().enumerate() {
                    shape(mark, at, colour)?;
                }
            } else {
                let corners = [(left, last.1 - 9), (last.0, last.1 + 9)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
            }
            let figures: Vec<String> = row.figures.iter().map(|&figure| number(figure)).collect();
            write(&area, &figures.join(" / "), (last.0 + 10, last.1), style(13, INK, HPos::Left))?;
        }
        self.finish(&area)
    }
}

/// Draws the axes and their marks, with room to the left and to the right.
fn plot<'a, 'b>(
    area: &Area<'a>,
    x: Axis,
    [across, upwards]: [Ruler; 2],
    left: u32,
    right: u32,
) -> Result<Plot<'a, 'b>, Box<dyn Error>> {
    let mut plot = ChartBuilder::on(area)
        .margin_top(HEAD)
        .margin_bottom(FOOT)
        .margin_left(MARGIN)
        .margin_right(right)
        .x_label_area_size(AXIS)
        .y_label_area_size(left)
        .build_cartesian_2d(across, upwards)?;
    plot.configure_mesh()
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style(style(13, INK, HPos::Center))
        .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
        .x_desc(x.label())
        .draw()?;
    Ok(plot)
}

/// Moves heights (sorted) so far apart that texts do not overlap.
fn apart(mut heights: Vec<i32>) -> Vec<i32> {
    const LINE: i32 = 17;
    for _ in 0..100 {
        let mut moved = false;
        for index in 1..heights.len() {
            let short = LINE - (heights[index] - heights[index - 1]);
            if short > 0 {
                heights[index - 1] -= (short + 1) / 2;
                heights[index] += short / 2 + short % 2;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    heights
}
