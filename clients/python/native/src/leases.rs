//! The leases of a local limit as a class of Python. Its methods lock them, but never call Python meanwhile: Python might run
//! code that takes from the same limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::leases::{self, Decision, ErrorReply, Failure, Now, TakeError, Terms, Value};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyString, PyTuple, PyType};

use crate::fill_random;

/// An exception object.
type Error = Arc<Py<PyAny>>;

/// The commands of a round, and what their replies are for.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
pub(crate) struct Round {
    /// The process that made it. In a forked child it means nothing.
    process: u32,
    /// Taken when the outcome is reported.
    round: Mutex<Option<leases::Round>>,
    /// The words of each command.
    #[pyo3(get)]
    commands: Py<PyList>,
}

struct State {
    process: u32,
    leases: leases::Leases<Error>,
    /// The errors that `leases` may hold. They are dropped only when the state is not locked, as that may call Python.
    errors: Vec<Error>,
}

enum Clocks {
    System {
        start: Instant,
    },
    /// The clocks of a test: functions that return seconds, monotonic and wall.
    Set(Py<PyAny>, Py<PyAny>),
}

/// The leases of one key.
///
/// A forked child drops what it inherited, because it belongs to the parent.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
pub(crate) struct Leases {
    terms: Terms,
    clocks: Clocks,
    state: Mutex<State>,
    /// Called when next_round() may have something to send.
    wake: Py<PyAny>,
    /// The class of the error of a take whose batches arrive too late.
    late_error: Py<PyAny>,
    reply: Py<PyType>,
    /// object.__new__. Reply.__init__ sets each field by a call of its own, because the class is frozen.
    new: Py<PyAny>,
}

fn new_state(terms: &Terms, now: Now) -> State {
    let mut random = [0; 12];
    fill_random(&mut random);
    let prefix = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let leases = leases::Leases::new(terms.clone(), prefix, now);
    State { process: std::process::id(), leases, errors: Vec::new() }
}

/// Reads the quantity of a take. One that is greater than any limit can be stays so.
#[inline]
fn read_quantity(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        let repr = value.repr()?;
        return Err(PyTypeError::new_err(format!("quantity must be an integer, not {repr}")));
    }
    match value.extract() {
        Ok(quantity @ 1..) => Ok(quantity),
        Err(_) if value.gt(0)? => Ok(u64::MAX),
        _ => Err(PyValueError::new_err(format!("quantity must be at least 1, not {value}"))),
    }
}

fn read_value(value: &Bound<'_, PyAny>) -> Value {
    if let Ok(number) = value.cast_exact::<PyInt>() {
        return number.extract().map_or(Value::Nil, Value::Integer);
    }
    let is_text = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyString>();
    if is_text {
        Value::Text
    } else {
        Value::Nil
    }
}

/// Reads a reply of the server. An error is a tuple of its code and the exception.
fn read_reply(reply: &Bound<'_, PyAny>) -> PyResult<Result<Value, ErrorReply<Error>>> {
    if let Ok(error) = reply.cast::<PyTuple>() {
        let (code, error): (Option<String>, Py<PyAny>) = error.extract()?;
        return Ok(Err(ErrorReply { code: code.unwrap_or_default(), error: Arc::new(error) }));
    }
    Ok(Ok(match reply.cast::<PyList>() {
        Ok(values) => Value::Array(values.iter().map(|value| read_value(&value)).collect()),
        Err(_) => read_value(reply),
    }))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Nil => "no value".to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Text => "a text".to_string(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(shown).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Makes an exception whose class is one of the package.
fn package_error(py: Python<'_>, class: &str, text: String) -> PyResult<Py<PyAny>> {
    let replies = py.import("redis_ratelimit._internal.replies")?;
    Ok(replies.getattr(class)?.call1((text,))?.unbind())
}

/// Reads the clocks of the system, which calls no Python.
#[inline]
fn system_now(start: Instant) -> Now {
    let as_ns = |length: Duration| {
        // Faster than `as_nanos`, which uses 128 bits.
        let ns = length.as_secs().saturating_mul(1_000_000_000);
        i64::try_from(ns.saturating_add(length.subsec_nanos().into())).unwrap_or(i64::MAX)
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { monotonic_ns: as_ns(start.elapsed()), wall_ns: as_ns(since_1970) }
}

fn ask(clock: &Py<PyAny>, py: Python<'_>) -> PyResult<i64> {
    let seconds: f64 = clock.call0(py)?.extract(py)?;
    Ok((seconds * 1e9) as i64)
}

impl Leases {
    /// Locks the state, which is a new one in a forked child, and reads the clock.
    ///
    /// The clock is read last, so that no batch arrives between the reading and the decision. A clock of a test is read before,
    /// because it is Python, and again if a round has ended since.
    #[inline]
    fn lock(&self, py: Python<'_>) -> PyResult<(MutexGuard<'_, State>, Now)> {
        let lock = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut state, now) = match &self.clocks {
            Clocks::System { start } => {
                let state = lock();
                (state, system_now(*start))
            }
            Clocks::Set(monotonic, wall) => loop {
                let rounds = lock().leases.rounds();
                let now = Now { monotonic_ns: ask(monotonic, py)?, wall_ns: ask(wall, py)? };
                let state = lock();
                if state.leases.rounds() == rounds {
                    break (state, now);
                }
            },
        };
        if state.process != std::process::id() {
            let parents = std::mem::replace(&mut *state, new_state(&self.terms, now));
            // Dropping its errors might call Python.
            std::mem::forget(parents);
        }
        Ok((state, now))
    }

    /// Unlocks the state. Wakes whoever sends the rounds if there may be something to send.
    #[inline]
    fn unlock(&self, py: Python<'_>, mut state: MutexGuard<'_, State>) -> PyResult<()> {
        let is_due = state.leases.take_due();
        drop(state);
        if is_due {
            self.wake.call0(py)?;
        }
        Ok(())
    }

    fn error(&self, py: Python<'_>, failure: Failure<Error>) -> PyResult<Py<PyAny>> {
        match failure {
            Failure::Error(error) => Ok(error.clone_ref(py)),
            Failure::Unreadable(value) => {
                let text =
                    format!("unexpected reply instead of a decision or a count: {}", shown(&value));
                package_error(py, "UnexpectedReply", text)
            }
            Failure::LateBatches => {
                let text =
                    format!("no batch arrived within its lease of {} ms", self.terms.lease_ms);
                self.late_error.call1(py, (text,))
            }
        }
    }

    fn take_error(&self, py: Python<'_>, error: TakeError) -> PyErr {
        match error {
            TakeError::Closed => {
                let text = "the limit in the process is closed".to_string();
                match package_error(py, "Closed", text) {
                    Ok(error) => PyErr::from_value(error.into_bound(py)),
                    Err(error) => error,
                }
            }
            TakeError::Semaphore => {
                let policy = self.terms.window.first().map(|name| String::from_utf8_lossy(name));
                PyValueError::new_err(format!(
                    "a lease is of a window, and '{}' is a semaphore",
                    policy.unwrap_or_default()
                ))
            }
        }
    }

    /// Makes a Reply.
    #[inline]
    fn reply<'py>(&self, py: Python<'py>, reply: leases::Reply) -> PyResult<Bound<'py, PyAny>> {
        let made = self.new.bind(py).call1((&self.reply,))?;
        let fields = made.getattr(intern!(py, "__dict__"))?;
        let fields = fields.cast_exact::<PyDict>()?;
        let limited = match reply.decision {
            Decision::Allowed => 0,
            Decision::Denied => 1,
            Decision::Held => 2,
        };
        fields.set_item(intern!(py, "limited"), limited)?;
        fields.set_item(intern!(py, "limit"), reply.limit)?;
        fields.set_item(intern!(py, "remaining"), reply.remaining)?;
        fields.set_item(intern!(py, "retry_after_ms"), reply.retry_after_ms)?;
        fields.set_item(intern!(py, "reset_after_ms"), reply.reset_after_ms)?;
        Ok(made)
    }

    /// Reports the outcome of a round. A round of the parent process is ignored.
    fn report(
        &self,
        py: Python<'_>,
        round: &Round,
        errors: Vec<Error>,
        report: impl FnOnce(&mut State, leases::Round, Now),
    ) -> PyResult<()> {
        let round_ = round.round.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(round_) = round_ else { return Ok(()) };
        let (mut state, now) = self.lock(py)?;
        if state.process != round.process {
            return Ok(());
        }
        state.errors.extend(errors);
        report(&mut state, round_, now);
        let (used, unused) = state.errors.drain(..).partition(|error| Arc::strong_count(error) > 1);
        state.errors = used;
        drop(state);
        drop::<Vec<Error>>(unused);
        Ok(())
    }
}

#[pymethods]
impl Leases {
    /// Creates leases. `key`, and the words of the window before and after its quantity, are bytes. `limit` is None for a
    /// policy. `clocks` are None, or functions that return seconds: a monotonic one and one of the wall.
    #[new]
    #[pyo3(signature = (key, window, options, limit, counted_ms, lease_ms, leave, *, wake, late_error, clocks=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        key: Vec<u8>,
        window: Vec<Vec<u8>>,
        options: Vec<Vec<u8>>,
        limit: Option<u64>,
        counted_ms: u64,
        lease_ms: u64,
        leave: u64,
        wake: Py<PyAny>,
        late_error: Py<PyAny>,
        clocks: Option<(Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<Leases> {
        let terms = Terms { key, window, options, limit, counted_ms, lease_ms, leave };
        let (clocks, now) = match clocks {
            None => {
                let start = Instant::now();
                (Clocks::System { start }, system_now(start))
            }
            Some((monotonic, wall)) => {
                let now = Now { monotonic_ns: ask(&monotonic, py)?, wall_ns: ask(&wall, py)? };
                (Clocks::Set(monotonic, wall), now)
            }
        };
        let state = Mutex::new(new_state(&terms, now));
        let reply = py.import("redis_ratelimit._internal.replies")?.getattr("Reply")?;
        let new = py.import("builtins")?.getattr("object")?.getattr("__new__")?.unbind();
        let reply = reply.cast_into::<PyType>()?.unbind();
        Ok(Leases { terms, clocks, state, wake, late_error, reply, new })
    }

    /// Returns a decision; None if the server must be asked. Counts the quantity as demand, unless want() did.
    #[pyo3(signature = (quantity, is_counted=false))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        quantity: &Bound<'py, PyAny>,
        is_counted: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let quantity = read_quantity(quantity)?;
        let (mut state, now) = self.lock(py)?;
        let decided = state.leases.take(quantity, is_counted, now);
        self.unlock(py, state)?;
        match decided {
            Ok(Some(reply)) => self.reply(py, reply).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(self.take_error(py, error)),
        }
    }

    /// Requests what a take needs. Returns the value of `rounds` at which it tries again.
    #[pyo3(signature = (quantity, is_counted=false))]
    fn want(&self, py: Python<'_>, quantity: &Bound<'_, PyAny>, is_counted: bool) -> PyResult<u64> {
        let quantity = read_quantity(quantity)?;
        let (mut state, now) = self.lock(py)?;
        let awaited = state.leases.want(quantity, is_counted, now);
        self.unlock(py, state)?;
        awaited.map_err(|error| self.take_error(py, error))
    }

    /// Returns the reply to a take whose batches were always spent by others.
    fn outrun_reply<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let reply = self.lock(py)?.0.leases.outrun_reply();
        self.reply(py, reply)
    }

    /// The number of rounds that are over.
    #[getter]
    fn rounds(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.0.leases.rounds())
    }

    /// The error of the round `awaited` or a later one; None if there was none.
    fn error_since(&self, py: Python<'_>, awaited: u64) -> PyResult<Option<Py<PyAny>>> {
        let failure = self.lock(py)?.0.leases.error_since(awaited).cloned();
        failure.map(|failure| self.error(py, failure)).transpose()
    }

    /// Returns what to send now; None if there is nothing.
    fn next_round(&self, py: Python<'_>) -> PyResult<Option<Round>> {
        let (mut state, now) = self.lock(py)?;
        state.leases.take_due();
        let (process, round) = (state.process, state.leases.next_round(now));
        drop(state);
        let Some(round) = round else { return Ok(None) };
        let commands = PyList::empty(py);
        for words in &round.commands {
            let words = words.iter().map(|word| PyBytes::new(py, word));
            commands.append(PyTuple::new(py, words.collect::<Vec<_>>())?)?;
        }
        Ok(Some(Round { process, round: Mutex::new(Some(round)), commands: commands.unbind() }))
    }

    /// Returns the seconds after which next_round() should be called if it is not woken before; None if it need not.
    fn next_in(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let (state, now) = self.lock(py)?;
        let next_at_ns = state.leases.next_at(now);
        Ok(next_at_ns.map(|at| at.saturating_sub(now.monotonic_ns).max(0) as f64 / 1e9))
    }

    /// Reads the replies to the commands of a round. An error is a tuple of its code and the exception.
    fn receive(&self, py: Python<'_>, round: &Round, replies: &Bound<'_, PyList>) -> PyResult<()> {
        let replies = replies.iter().map(|reply| read_reply(&reply));
        let replies = replies.collect::<PyResult<Vec<_>>>()?;
        let errors = replies.iter().filter_map(|reply| reply.as_ref().err());
        let errors = errors.map(|reply| Arc::clone(&reply.error)).collect();
        self.report(py, round, errors, |state, round, now| {
            state.leases.receive(round, replies, now);
        })
    }

    /// Records that a round got no replies. `is_sent` is whether the server may have executed it.
    fn fail(&self, py: Python<'_>, round: &Round, error: Py<PyAny>, is_sent: bool) -> PyResult<()> {
        let error = Arc::new(error);
        self.report(py, round, vec![Arc::clone(&error)], |state, round, now| {
            state.leases.fail(round, error, is_sent, now);
        })
    }

    /// Settles what is held, and requests nothing more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (mut state, _) = self.lock(py)?;
        state.leases.close();
        self.unlock(py, state)
    }

    /// True if nothing is held or being settled, or closed leases have given up settling.
    #[getter]
    fn is_settled(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.0.leases.is_settled())
    }

    /// Returns the error because of which closed leases could not settle everything; None if they could.
    fn unsettled(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let failure = self.lock(py)?.0.leases.unsettled();
        failure.map(|failure| self.error(py, failure)).transpose()
    }
}
