//! What is noted of the calls that take: by policy, the keys that are denied most, and keyspace events.

use super::arguments::Arguments;
use super::policies::{self, Ended};
use crate::config;
use crate::error::Error;
use crate::options::{Known, Options};
use crate::redis::call::Call;
use crate::redis::clock;
use crate::redis::events::notify;
use crate::redis::main_thread::MainThread;
use crate::state::Spot;
use crate::stats::Replied;
use engine::heavy::{Key, Recent};
use engine::request::Request;

/// The longest key that RL.TOP shows; longer ones are cut.
const MAX_KEY: usize = 256;

/// The keys that are denied most, by database and name.
static TOP: MainThread<Option<Recent>> = MainThread::new(None);

fn top<T>(body: impl FnOnce(&mut Recent) -> T) -> T {
    TOP.with(|top| {
        body(top.get_or_insert_with(|| {
            Recent::new(usize::try_from(config::TOP_KEYS.get()).unwrap_or(usize::MAX))
        }))
    })
}

/// Forgets which keys were denied: after RESET, where the setting `top-keys` changes, and before the module goes.
pub fn forget_top() {
    drop(TOP.with(Option::take));
}

/// Notes how a request ended, once it is replied.
pub fn note(spot: Spot, request: &Request, ended: Ended) {
    count(request, ended);
    if request.takes() && ended == Ended::Denied {
        note_denial(spot);
    }
}

/// Counts how a request ended in its policy.
pub fn count(request: &Request, ended: Ended) {
    if let Some(id) = request.policy.filter(|_| request.takes()) {
        policies::count(id, ended);
    }
}

/// Notes a denial of a call that takes, for RL.TOP and as a keyspace event.
pub fn note_denial(spot: Spot) {
    if config::TOP_KEYS.get() > 0 {
        let name = spot.name.as_bytes();
        let key = Key { db: spot.ctx.db(), name: name.get(..MAX_KEY).unwrap_or(name) };
        top(|top| top.add(key, spot.now_us));
    }
    if config::NOTIFY_DENIED.get() {
        notify(spot.ctx, c"rl.denied", spot.name);
    }
}

/// `RL.TOP [COUNT n] [RESET]`
pub fn top_keys(call: &Call, known: Known) -> Result<Replied, Error> {
    let mut options = Options::new();
    Arguments::from(call, 1).options(&mut options, known, false)?;
    let most = usize::try_from(options.number(Known::COUNT).unwrap_or(10)).unwrap_or(usize::MAX);
    let heaviest = match config::TOP_KEYS.get() {
        0 => Vec::new(),
        _ => top(|top| top.heaviest(clock::command_time_us(), most)),
    };
    if options.has(Known::RESET) {
        forget_top();
    }
    let ctx = call.context();
    ctx.reply_array(heaviest.len());
    for (db, name, count) in &heaviest {
        ctx.reply_array(4);
        ctx.reply_text(name);
        ctx.reply_signed(i64::from(*db));
        ctx.reply_integer(count.count);
        ctx.reply_integer(count.over);
    }
    Ok(Replied::Allowed)
}
