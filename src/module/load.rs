//! Loading and unloading the module.

use super::info::Section;
use super::{build, callbacks, registration, settings, unload};
use crate::blocking;
use crate::config;
use crate::redis::context::Context;
use crate::redis::events::{self, ChangeHandlers};
use crate::redis::load::{export, promise, Module, Promises};
use crate::redis::{declaration, event_loop, handlers, info};
use crate::state::{indexes, reservations};
use crate::{observe, policies};
use std::ffi::{c_int, CStr};

export!(Ratelimit);

/// This module.
struct Ratelimit;

impl Module for Ratelimit {
    const NAME: &'static CStr = c"ratelimit";
    const VERSION: c_int = build::NUMBER;
    const PANIC_LINE: &'static CStr = c"redis-ratelimit: internal error, please report it";
    const TAKEN_LINE: &'static CStr =
        c"redis-ratelimit: a module with the name ratelimit is loaded already: keep one loadmodule line, or send MODULE UNLOAD ratelimit first";

    fn load(ctx: Context, arguments: &[&[u8]]) -> Result<(), String> {
        promise(ctx, Promises::all());
        let category = declaration::add_category(ctx, Self::NAME);
        let category = category.then_some(Self::NAME);
        registration::register(ctx, category)?;
        let taken = settings::take_arguments(&settings::SETTINGS, arguments)?;
        settings::register(ctx)?;
        settings::refuse_lost(ctx, &taken)?;
        if config::CL_THROTTLE.get() {
            registration::register_on_demand(ctx, category)?;
        }
        info::register::<Section>(ctx);
        handlers::start(ctx, &callbacks::HANDLERS);
        event_loop::start(ctx);
        let (key_changed, all_changed) = (reservations::key_changed, indexes::drop_all);
        events::register(ctx, ChangeHandlers { key_changed, all_changed });
        build::log_load(ctx);
        Ok(())
    }

    fn may_unload(ctx: Context) -> bool {
        unload::may_unload(ctx)
    }

    fn lacks(function: &str) -> String {
        format!("this server lacks {function}; Redis 6.2 or later is needed")
    }

    fn refused(why: &str) -> String {
        format!("redis-ratelimit: {why}")
    }

    fn unload() {
        blocking::unload();
        policies::unload();
        observe::forget_top();
        indexes::drop_all();
        events::unload();
        settings::reset();
        config::unload();
        event_loop::unload();
        handlers::unload();
    }
}
