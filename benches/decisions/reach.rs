//! The bars that the project set itself, and how far a run got.

use serde_json::{json, Value};

use crate::report::{Table, SET_EX};
use crate::throttle;

/// One bar.
pub struct Bar {
    what: String,
    bound: f64,
    /// Whether the figure is to stay at or below the bound, or to reach it.
    side: Side,
    figure: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    AtMost,
    AtLeast,
}

impl Bar {
    fn at_most(what: String, bound: f64, figure: Option<f64>) -> Bar {
        Bar { what, bound, side: Side::AtMost, figure }
    }

    fn verdict(&self) -> &'static str {
        let reached = self.figure.map(|figure| match self.side {
            Side::AtMost => figure <= self.bound,
            Side::AtLeast => figure >= self.bound,
        });
        match reached {
            Some(true) => "PASS",
            Some(false) => "miss",
            None => "-",
        }
    }

    pub fn to_json(&self) -> Value {
        json!({
            "bar": self.what,
            "side": if self.side == Side::AtMost { "at most" } else { "at least" },
            "bound": self.bound,
            "figure": self.figure,
            "verdict": self.verdict(),
        })
    }
}

/// Prints the bars of the sections that were run.
pub fn print(bars: &[Bar]) {
    println!("\nReach\n");
    let width = bars.iter().map(|bar| bar.what.chars().count()).max().unwrap_or(0);
    for bar in bars {
        let figure = bar.figure.map_or("not there".into(), |figure| format!("{figure:.3}"));
        let sign = if bar.side == Side::AtMost { "<=" } else { ">=" };
        let (what, bound, verdict) = (&bar.what, bar.bound, bar.verdict());
        println!("{verdict:4}  {what:width$}  {figure:>9} {sign} {bound:.3}");
    }
}

/// Compares what was measured with every bar of the sections that were run.
pub fn bars(tables: &[Table]) -> Vec<Bar> {
    let table = |id: &str| tables.iter().find(|table| table.id == id);
    let mut bars = Vec::new();
    if let Some(table) = table("throttle") {
        for (name, bound) in
            [(throttle::ALLOWED, 1.0), (throttle::FRACTION, 1.0), (throttle::DENIED, 0.55)]
        {
            bars.push(Bar::at_most(format!("{name} / SET EX"), bound, table.ratio(name, SET_EX)));
        }
    }
    bars
}
