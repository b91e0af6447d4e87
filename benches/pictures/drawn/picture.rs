//! A picture of one traffic against all limits, as SVG. Marks differ by shape and place, not by colour alone. The marks of
//! a kind are one path, so that the file stays small.

use super::svg::{self, path, text, BLUE, FAINT, GREEN, GREY, INK, MARGIN as LEFT, ORANGE, PAPER};
use super::traffic::{most_in_a_minute, DrawnLimit, Traffic};
use super::DrawnCall;

const WIDTH: i64 = 960;
const RIGHT: i64 = WIDTH - LEFT;
const HEAD: i64 = 88;
/// A limit's name, and its lane below.
const ROW: i64 = 76;
/// From the top of a row: where calls go ahead, where they come, and where those end that are denied after a wait.
const AHEAD: i64 = 26;
const COME: i64 = 50;
const GIVEN_UP: i64 = 62;
const FOOT: i64 = 40;
/// At least half the width of a time below the axis.
const HALF_CLOCK: i64 = 36;
/// Between the marks of the axis.
const MARK_MS: i64 = 30_000;

/// The paths of one lane, or of the legend: one for each kind of mark, in the order in which they are drawn.
#[derive(Default)]
struct Marks {
    lane: String,
    gives_up: String,
    waits: String,
    at_once: String,
    at_once_dots: String,
    later_dots: String,
    denied: String,
}

impl Marks {
    /// Adds a call that came at `x` and went on or was denied at `end`, in the row at `top`.
    fn add(&mut self, call: &DrawnCall, (x, end): (f64, f64), top: i64) {
        let (ahead, come, given_up) = (top + AHEAD, top + COME, top + GIVEN_UP);
        let waited = call.at_ms != call.came_ms;
        if call.may_go {
            let (line, dots) = match waited {
                true => (&mut self.waits, &mut self.later_dots),
                false => (&mut self.at_once, &mut self.at_once_dots),
            };
            *line += &match waited {
                true => format!("M{x} {come}L{end} {ahead}"),
                false => format!("M{x} {come}V{ahead}"),
            };
            *dots += &format!("M{end} {ahead}h0");
            return;
        }
        if waited {
            self.gives_up += &format!("M{x} {come}L{end} {given_up}");
        }
        let y = if waited { given_up } else { come };
        self.denied += &format!("M{} {}l5 5m0-5l-5 5", round(end - 2.5), y as f64 - 2.5);
    }

    fn draw(&self, svg: &mut String) {
        *svg += "<g fill=\"none\">\n";
        for (marks, stroke, width, more) in [
            (&self.lane, FAINT, "1", ""),
            (&self.gives_up, ORANGE, "0.8", " stroke-dasharray=\"2 2\""),
            (&self.waits, GREEN, "1", ""),
            (&self.at_once, BLUE, "1.6", ""),
            (&self.at_once_dots, BLUE, "6.4", " stroke-linecap=\"round\""),
            (&self.later_dots, GREEN, "7.6", " stroke-linecap=\"round\""),
            (&self.later_dots, PAPER, "4", " stroke-linecap=\"round\""),
            (&self.denied, ORANGE, "1.5", ""),
        ] {
            if !marks.is_empty() {
                path(svg, marks, &format!("stroke=\"{stroke}\" stroke-width=\"{width}\"{more}"));
            }
        }
        *svg += "</g>\n";
    }
}

/// To a tenth of a pixel.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

pub fn draw<'a>(
    traffic: &Traffic,
    lanes: impl ExactSizeIterator<Item = &'a (DrawnLimit, Vec<DrawnCall>)>,
) -> String {
    let (from_ms, to_ms) = traffic.shown_ms;
    let x = |at_ms: i64| {
        let part = (at_ms - from_ms) as f64 / (to_ms - from_ms) as f64;
        round(LEFT as f64 + part * (RIGHT - LEFT) as f64)
    };
    let rows = lanes.len() as i64;
    let (bottom, height) = (HEAD + ROW * rows, HEAD + ROW * rows + FOOT);
    let mut svg = svg::begin((WIDTH, height), traffic.title);
    legend(&mut svg);
    axis(&mut svg, x, traffic, bottom);
    for ((limit, calls), row) in lanes.zip(0..) {
        lane(&mut svg, *limit, calls, x, HEAD + ROW * row);
    }
    svg + "</svg>\n"
}

/// The legend of the marks.
fn legend(svg: &mut String) {
    let mut marks = Marks::default();
    let top = 10;
    let kinds = [
        (LEFT, 0, true, "goes ahead at once"),
        (LEFT + 165, 20, true, "goes ahead after a wait"),
        (LEFT + 375, 0, false, "denied"),
        (LEFT + 460, 20, false, "denied after a wait"),
    ];
    for (left, wait, may_go, words) in kinds {
        let from = left as f64 + 5.0;
        let call = DrawnCall { came_ms: 0, may_go, at_ms: wait };
        marks.add(&call, (from, from + wait as f64), top);
        text(svg, (left + wait + 15, top + 48), "", words);
    }
    let more = " text-anchor=\"end\"";
    text(svg, (RIGHT, top + 48), more, "each limit: 15 a minute, on a new key");
    marks.draw(svg);
}

/// The times.
fn axis(svg: &mut String, x: impl Fn(i64) -> f64, traffic: &Traffic, bottom: i64) {
    let (from_ms, to_ms) = traffic.shown_ms;
    let mut marks = String::new();
    for at_ms in (from_ms..=to_ms).filter(|at_ms| at_ms % MARK_MS == 0) {
        let second = at_ms.rem_euclid(86_400_000) / 1000;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let clock = match second {
            0 => "midnight".into(),
            _ => format!("{hour:02}:{minute:02}:{:02}", second % 60),
        };
        let middle = x(at_ms).round() as i64;
        // Centred, the last time would be cut off.
        let (at, anchor) =
            if middle + HALF_CLOCK > WIDTH { (RIGHT, "end") } else { (middle, "middle") };
        let more = format!(" text-anchor=\"{anchor}\"");
        text(svg, (at, bottom + 24), &more, &clock);
        marks += &format!("M{} {}v6", x(at_ms), bottom + 4);
    }
    let axis = format!("M{LEFT} {}H{RIGHT}{marks}", bottom + 4);
    path(svg, &axis, &format!("stroke=\"{INK}\" fill=\"none\""));
}

/// A limit, and the result of each call.
fn lane(
    svg: &mut String,
    (words, command, _): DrawnLimit,
    calls: &[DrawnCall],
    x: impl Fn(i64) -> f64,
    top: i64,
) {
    text(svg, (LEFT, top + 12), " font-weight=\"bold\"", words);
    text(svg, (LEFT + 235, top + 12), " font-family=\"monospace\"", command);
    let (go, most) = (calls.iter().filter(|call| call.may_go).count(), most_in_a_minute(calls));
    let denied = calls.len() - go;
    let caption = format!("{go} go ahead, {denied} denied; at most {most} in 60 s");
    text(svg, (RIGHT, top + 12), " text-anchor=\"end\"", &caption);
    let midnight = format!("M{} {}V{}", x(0), top + 19, top + GIVEN_UP + 3);
    path(svg, &midnight, &format!("stroke=\"{GREY}\" stroke-dasharray=\"4 3\""));
    let mut marks = Marks { lane: format!("M{LEFT} {}H{RIGHT}", top + COME), ..Marks::default() };
    for call in calls {
        marks.add(call, (x(call.came_ms), x(call.at_ms)), top);
    }
    marks.draw(svg);
}
