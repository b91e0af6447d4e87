//! Loading and unloading the module.

use super::info::write_fields;
use super::log::log_warning;
use super::{build, dispatch, registration, settings, unload};
use crate::blocking;
use crate::redis::context::Context;
use crate::redis::events;
use crate::redis::handlers::{self, Handlers};
use crate::redis::load::{export, promise, Module};
use crate::redis::{declaration, event_loop, info};
use crate::state::indexes;

export!(MODULE);

static HANDLERS: Handlers = Handlers {
    answer: dispatch::answer,
    withdraw: blocking::withdraw,
    forget: blocking::forget,
    serve_timer: blocking::serve_timer,
    restart_timer: blocking::restart_timer,
    key_changed: indexes::key_changed,
    all_changed: indexes::drop_all,
    answer_after_panic: dispatch::answer_after_panic,
};

static MODULE: Module = Module {
    name: c"ratelimit",
    version: build::VERSION_NUMBER,
    name_taken_line:
        c"redis-ratelimit: a module with the name ratelimit is already loaded: keep one loadmodule line, or send MODULE UNLOAD ratelimit first",
    load: |ctx, arguments, missing| {
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
    },
    prepare_unload: unload::prepare,
    before_unload: settings::reset,
};

/// Registers everything with the server, or says why that failed.
fn load(ctx: Context, arguments: &[&[u8]]) -> Result<(), String> {
    promise(ctx);
    let category = declaration::add_category(ctx, MODULE.name).then_some(MODULE.name);
    let applied = settings::apply_arguments(&settings::SETTINGS, arguments)?;
    settings::register(ctx)?;
    settings::refuse_lost(ctx, &applied)?;
    registration::register(ctx, category)?;
    info::register(ctx, write_fields);
    handlers::start(ctx, &HANDLERS);
    event_loop::start(ctx);
    events::register(ctx);
    build::log_load(ctx);
    Ok(())
}
