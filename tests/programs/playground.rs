//! docs/playground, the page that shows what a limit admits: in headless Chromium, driven as a person does.

use std::env;
use std::path::PathBuf;

use support::*;

use crate::helpers::has_engine;

/// A program of the search path.
fn found(name: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH")?;
    env::split_paths(&paths).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// `PICTURES=folder` leaves screenshots there.
#[test]
fn the_playground_shows_which_calls_are_allowed_and_when() {
    let Some(chromium) = found("chromium") else {
        return skip("docs/playground", "no chromium");
    };
    let Some(mut script) = Language::Node.script("tests/clients/playground.mjs") else { return };
    if !clients_dir().join("node_modules/playwright-core").exists() {
        return skip("docs/playground", "target/clients has no playwright-core");
    }
    if !has_engine("typescript") {
        return;
    }
    script.arg(root()).arg(chromium);
    script.args(env::var_os("PICTURES"));
    run_and_print(&mut script);
}
