//! One line with and without turns (BY): when the calls of two tenants go ahead. It is narrow enough for a phone.

use std::fmt::Write;

use commands::memory::{Outcome, Ticket};
use support::START_US;

use super::svg::{self, text, BLUE, FAINT, INK, MARGIN as LEFT, PINK};
use super::{call, integers, new_server};

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
const STEP_MS: usize = 100;

/// A tenant, the time at which all of its calls come, their number, and their colour.
type Tenant = (&'static str, i64, usize, &'static str);

const TENANTS: [Tenant; 2] = [("acme", 0, 10, BLUE), ("zebra", 2_500, 3, PINK)];

/// One call a second.
const COMMAND: &str = "RL.THROTTLE key 0 1 1s";
const LANES: [&str; 2] = ["BLOCK 30s", "BLOCK 30s BY tenant"];

/// The times at which the calls of each tenant go ahead, in milliseconds.
type Times = [Vec<i64>; TENANTS.len()];

fn run(options: &str) -> Times {
    let mut server = new_server();
    let mut waiting: Vec<(Ticket, usize)> = Vec::new();
    let mut times = Times::default();
    for now_ms in (0..=END_MS).step_by(STEP_MS) {
        let now_us = (START_US + 1000 * now_ms).unsigned_abs();
        for (ticket, reply) in server.take_ended(now_us) {
            assert_eq!(integers(reply)[0], 0, "each call goes ahead");
            let at = waiting.iter().position(|(waits, _)| *waits == ticket).expect("a call waits");
            times[waiting.remove(at).1].push(now_ms);
        }
        for (tenant, (name, came_ms, calls, _)) in TENANTS.iter().enumerate() {
            let command = format!("{COMMAND} {}", options.replace("tenant", name));
            for _ in 0..if *came_ms == now_ms { *calls } else { 0 } {
                match call(&mut server, &command, now_us) {
                    Outcome::Waits(ticket) => waiting.push((ticket, tenant)),
                    Outcome::Reply(reply) => {
                        assert_eq!(integers(reply)[0], 0, "each call goes ahead");
                        times[tenant].push(now_ms);
                    }
                }
            }
        }
    }
    assert!(waiting.is_empty(), "the picture ends before the last wait does");
    times
}

fn x(at_ms: i64) -> i64 {
    LEFT + at_ms * (RIGHT - LEFT) / END_MS
}

/// A disc or a square: tenants differ by shape, not by colour alone.
fn mark(svg: &mut String, tenant: usize, (x, y): (i64, i64)) {
    let (.., colour) = TENANTS[tenant];
    let _ = match tenant {
        0 => writeln!(svg, "<circle cx=\"{x}\" cy=\"{y}\" r=\"6\" fill=\"{colour}\"/>"),
        _ => {
            let (left, top) = (x - 6, y - 6);
            writeln!(svg, "<path d=\"M{left} {top}h12v12h-12z\" fill=\"{colour}\"/>")
        }
    };
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
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {bottom}H{RIGHT}{marks}\" stroke=\"{INK}\" fill=\"none\"/>\n</svg>"
    );
    svg
}

fn lane(svg: &mut String, options: &str, times: &Times, top: i64) {
    let (ahead, come) = (top + AHEAD, top + COME);
    let command = format!("{COMMAND} {options}");
    text(svg, (LEFT, top + 16), " font-size=\"14\" font-family=\"monospace\"", &command);
    let _ = writeln!(svg, "<path d=\"M{LEFT} {come}H{RIGHT}\" stroke=\"{FAINT}\"/>");
    let mut waits = Vec::new();
    for ((name, came_ms, _, colour), times) in TENANTS.iter().zip(times) {
        let line = |at_ms: &i64| format!("M{} {come}L{} {ahead}", x(*came_ms), x(*at_ms));
        let lines: String = times.iter().map(line).collect();
        let _ = writeln!(svg, "<path d=\"{lines}\" stroke=\"{colour}\" fill=\"none\"/>");
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
