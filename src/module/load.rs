//! Loading and unloading the module.

use super::info::ModuleSection;
use super::{build, registration, settings, unload};
use crate::keys::indexes::KeyIndexes;
use crate::log::log_warning;
use crate::redis::clock::ClockWatch;
use crate::redis::context::Context;
use crate::redis::load::{export, set_module_options, LoadWatch, Module};
use crate::redis::server_events::{subscribe, ServerEvents, TICKS};
use crate::redis::under_lock::WhileLoaded;
use crate::redis::{declaration, info};
use crate::state::{State, STATE};
use std::ffi::{c_int, CStr};

export!(RateLimit);

pub struct RateLimit;

impl Module for RateLimit {
    const NAME: &'static CStr = c"ratelimit";
    const VERSION: c_int = build::VERSION_NUMBER;
    const NAME_TAKEN_LINE: &'static CStr =
        c"redis-ratelimit: a module with the name ratelimit is already loaded: keep one loadmodule line, or send MODULE UNLOAD ratelimit first";
    type State = State;

    fn state() -> &'static WhileLoaded<State> {
        &STATE
    }

    fn load(ctx: Context, arguments: &[&[u8]], missing: Option<&str>) -> bool {
        let loaded = match missing {
            None => load(ctx, arguments),
            Some(function) => {
                Err(format!("this server lacks {function}; Redis 6.2 or later is needed"))
            }
        };
        if let Err(why) = &loaded {
            log_warning(ctx, why);
        }
        loaded.is_ok()
    }

    fn prepare_unload(ctx: Context) -> bool {
        let state = State::get();
        // If the server rejects what the module did on load, it unloads the module at once. If we refused then, the module
        // would stay loaded although MODULE LOADEX replies with an error.
        !state.load.get().has_ended(ctx) || unload::prepare(state, ctx)
    }
}

/// Registers everything with the server, or says why that failed.
fn load(ctx: Context, arguments: &[&[u8]]) -> Result<(), String> {
    STATE.create(State::new());
    let state = State::get();
    set_module_options(ctx);
    let category = declaration::add_category(ctx, RateLimit::NAME).then_some(RateLimit::NAME);
    let applied = settings::apply_arguments(&settings::SETTINGS, arguments)?;
    settings::register(ctx)?;
    settings::refuse_overridden(ctx, &applied)?;
    registration::register(state, ctx, category)?;
    info::register::<ModuleSection>(ctx);
    state.waiting.prepare(ctx);
    subscribe::<RateLimit>(ctx);
    subscribe::<KeyIndexes>(ctx);
    build::log_load(state, ctx);
    state.load.replace(LoadWatch::start(ctx));
    Ok(())
}

impl ServerEvents for RateLimit {
    const IDS: &'static [u64] = TICKS;

    fn happened() {
        let state = State::get();
        state.load.with(LoadWatch::tick);
        if state.clock.with(ClockWatch::detect_set_back) {
            state.waiting.restart_timer();
        }
    }
}
