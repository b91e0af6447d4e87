//! A single wait: it begins, the server asks for the reply, and the server lets the client go.

use super::lines::{change, PendingWrite, WaitingCall};
use crate::environment::NUMBERS;
use crate::redis::blocked::Blocked;
use crate::redis::call::{Call, CommandNumber};
use crate::redis::context::{Context, KeyName};
use crate::redis::event_loop::count_turns;
use crate::redis::handlers::WaitNumber;
use crate::redis::text::OwnedString;
use crate::redis::under_lock::UnderLock;
use crate::redis::{clock, random, slot};
use crate::state::{KeyContext, ServerKeyspace};
use commands::error::Error;
use commands::reply::TakeCall;
use commands::waiting::{deny, TimedReply};
use engine::line::{deadline_us, Joining, Ticket, WaiterReply};
use engine::reservation::id_from_random;
use engine::text::Text;
use engine::{Decision, Mode};

/// Adds a call that was denied for `wait_us` to the line of its key. It waits for at most `block_ms` milliseconds, or
/// forever if that is 0.
// Out of line, because most calls do not wait.
#[cold]
#[inline(never)]
pub fn join(
    call: &Call,
    key_ctx: KeyContext,
    take_call: &TakeCall,
    block_ms: u64,
    wait_us: u64,
) -> Result<(), Error> {
    let key = key_ctx.db_key();
    let admitted = change(|lines, _| lines.admit(NUMBERS.max_waiters.get()));
    let ticket = admitted.ok_or(Error::TooManyWaiters)?;
    let blocked = Blocked::block(call, blocking_key(key.name).as_bytes(), ticket.number());
    let blocked = blocked.ok_or(Error::internal())?;
    let waiting_call =
        WaitingCall { call: *take_call, command: call.command, client: call.ctx.client() };
    count_turns();
    change(|lines, now_us| {
        let joining = Joining {
            call: waiting_call,
            leave: take_call.request.leave(),
            id: take_call.request.id().map(Box::from),
            handle: blocked,
            deadline_us: deadline_us(now_us, block_ms),
            wait_us,
        };
        lines.join(ticket, key, joining, now_us);
    });
    Ok(())
}

/// Returns the reply to a waiter whose wait has ended, by a grant, a timeout or CLIENT UNBLOCK. `None` if it has its reply:
/// before 7.2, CLIENT UNBLOCK asks again for a wait that we ended in the same turn of the event loop.
pub fn answer(ctx: Context, wait: WaitNumber) -> Option<(WaitingCall, Result<Decision, Error>)> {
    let ticket = Ticket::from_number(wait);
    let reply = change(|lines, now_us| lines.take_reply(ticket, now_us))?;
    let (call, line_key, was_head) = match reply {
        WaiterReply::Ended { call, reply } => return Some((call, reply.result)),
        WaiterReply::Unblocked { call, key, was_head } => (call, key, was_head),
    };
    // The reply is a denial. This callback must not write.
    let key = OwnedString::new(&line_key.name);
    let key_ctx = KeyContext { ctx, name: KeyName::polled(&key), now_us: clock::command_time_us() };
    let denied = deny(&ServerKeyspace::default(), key_ctx, &call.call, Mode::Look);
    if denied.is_ok() && was_head && call.call.request.count_denied {
        let write = PendingWrite::CountDenial(call.call.request);
        change(|lines, now_us| lines.add_write(line_key.borrowed(), write, now_us));
    }
    Some((call, denied))
}

/// Returns the command of a waiter that is not forgotten.
pub fn command_of(wait: WaitNumber) -> Option<CommandNumber> {
    change(|lines, _| lines.call(Ticket::from_number(wait)).map(|call| call.command))
}

/// Takes a waiter out of its line, because its client has disconnected or the server has answered it.
pub fn withdraw(wait: WaitNumber) {
    change(|lines, now_us| lines.withdraw(Ticket::from_number(wait), now_us));
}

/// Forgets a wait after the server has released its client. `cut_off` means that the server itself ended the wait, perhaps
/// after we had ended it.
pub fn forget(wait: WaitNumber, cut_off: bool) {
    let ticket = Ticket::from_number(wait);
    let Some(forgotten) = change(|lines, now_us| lines.forget(ticket, now_us)) else { return };
    let Some(TimedReply { result: Ok(granted), at_us }) = forgotten.reply else { return };
    // CLIENT UNBLOCK right after the grant sets `cut_off`, but the client got its reply.
    let notified = !cut_off || (forgotten.answered && forgotten.call.client.is_connected());
    if !notified && granted.allowed() {
        let write = PendingWrite::GiveBack {
            request: forgotten.call.call.request,
            granted,
            granted_us: at_us,
        };
        change(|lines, now_us| lines.add_write(forgotten.key.borrowed(), write, now_us));
    }
}

// ---- The key on which clients are blocked ----

/// The length of the secret in the names of these keys: 96 random bits.
const SECRET_LEN: usize = 16;

/// The secret, which is drawn when the first call waits.
static SECRET: UnderLock<[u8; SECRET_LEN]> = UnderLock::new(|| id_from_random(random::bytes()));

/// Returns the key on which the server blocks calls that wait on `key`. It is in the same slot and never exists.
fn blocking_key(key: &[u8]) -> Text<{ SECRET_LEN + 4 }> {
    let mut name = Text::new();
    name.push(b"{");
    name.push(&slot::slot_tag(slot::key_slot(key)));
    name.push(b"}");
    name.push(&SECRET.get());
    name
}
