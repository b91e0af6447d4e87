//! One line with and without turns (BY): when the calls of two tenants go ahead. It is narrow enough for a phone.

use std::fmt::Write;

use super::svg::{self, path, text, BLUE, FAINT, INK, MARGIN as LEFT, PINK};

const WIDTH: i64 = 480;
const RIGHT: i64 = WIDTH - LEFT;
const HEAD: i64 = 78;
/// The caption of a lane, and the lane below.
const ROW: i64 = 124;
/// From the top of a row: where calls go ahead, and where they come.
const AHEAD: i64 = 36;
const COME: i64 = 86;
const FOOT: i64 = 30;
/// The end of the picture.
const END_MS: i64 = 12_500;

/// A tenant, the time at which all of its calls come, their number, and their colour.
type Tenant = (&'static str, i64, usize, &'static str);

const TENANTS: [Tenant; 2] = [("acme", 0, 10, BLUE), ("zebra", 2_500, 3, PINK)];

/// One call a second.
const COMMAND: &str = "RL.THROTTLE key 0 1 1s";
const LANES: [&str; 2] = ["BLOCK 30s", "BLOCK 30s BY tenant"];

/// The times at which the calls of each tenant go ahead, in milliseconds.
type Times = [Vec<i64>; TENANTS.len()];

fn run(options: &str) -> Times {
    let calls = TENANTS.iter().flat_map(|(name, came_ms, calls, _)| {
        let command = format!("{COMMAND} {}", options.replace("tenant", name));
        std::iter::repeat_n((*came_ms, command), *calls)
    });
    let mut calls = super::run(&calls.collect::<Vec<_>>(), (0, END_MS)).into_iter();
    TENANTS.map(|(_, _, count, _)| {
        let calls = calls.by_ref().take(count);
        calls
            .inspect(|call| assert!(call.may_go, "each call goes ahead"))
            .map(|it| it.at_ms)
            .collect()
    })
}

fn x(at_ms: i64) -> i64 {
    LEFT + at_ms * (RIGHT - LEFT) / END_MS
}

/// A disc or a square: tenants differ by shape, not by colour alone.
fn mark(svg: &mut String, tenant: usize, (x, y): (i64, i64)) {
    let (.., colour) = TENANTS[tenant];
    let fill = format!("fill=\"{colour}\"");
    if tenant == 0 {
        let _ = writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"6\" {fill}/>");
    } else {
        path(svg, &format!("M{} {}h12v12h-12z", x - 6, y - 6), &fill);
    }
}

pub fn draw() -> String {
    let bottom = HEAD + ROW * LANES.len() as i64;
    let mut svg = svg::begin((WIDTH, bottom + FOOT), "A line, without and with turns");
    for (tenant, (name, came_ms, calls, _)) in TENANTS.iter().enumerate() {
        let left = LEFT + 6 + 210 * tenant as i64;
        mark(&mut svg, tenant, (left, 50));
        let words = format!("{name}: {calls} calls at {} s", seconds(*came_ms));
        text(&mut svg, (left + 14, 55), " font-size=\"14\"", &words);
    }
    for (options, row) in LANES.iter().zip(0..) {
        lane(&mut svg, options, &run(options), HEAD + ROW * row);
    }
    let mut marks = String::new();
    for second in (0..=END_MS / 1000).step_by(2) {
        let at = x(1000 * second);
        text(&mut svg, (at, bottom + 20), " text-anchor=\"middle\"", &format!("{second} s"));
        let _ = write!(marks, "M{at} {bottom}v5");
    }
    let axis = format!("M{LEFT} {bottom}H{RIGHT}{marks}");
    path(&mut svg, &axis, &format!("stroke=\"{INK}\" fill=\"none\""));
    svg + "</svg>\n"
}

fn lane(svg: &mut String, options: &str, times: &Times, top: i64) {
    let (ahead, come) = (top + AHEAD, top + COME);
    let command = format!("{COMMAND} {options}");
    text(svg, (LEFT, top + 16), " font-size=\"14\" font-family=\"monospace\"", &command);
    path(svg, &format!("M{LEFT} {come}H{RIGHT}"), &format!("stroke=\"{FAINT}\""));
    let mut waits = Vec::new();
    for ((name, came_ms, _, colour), times) in TENANTS.iter().zip(times) {
        let line = |at_ms: &i64| format!("M{} {come}L{} {ahead}", x(*came_ms), x(*at_ms));
        let lines: String = times.iter().map(line).collect();
        path(svg, &lines, &format!("stroke=\"{colour}\" fill=\"none\""));
        let first = times.iter().find(|at_ms| *at_ms > came_ms).unwrap_or(came_ms) - came_ms;
        let last = times.iter().max().unwrap_or(came_ms) - came_ms;
        waits.push(format!("{name} {} to {} s", seconds(first), seconds(last)));
    }
    for (tenant, times) in times.iter().enumerate() {
        times.iter().for_each(|at_ms| mark(svg, tenant, (x(*at_ms), ahead)));
    }
    let caption = format!("waits: {}", waits.join(", "));
    text(svg, (LEFT, come + 20), " font-size=\"14\"", &caption);
}

/// Seconds with as many digits as they have.
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}
