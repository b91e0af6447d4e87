//! What the Python client decides in the process: the server in memory, for MemoryLimiter, and the leases of local limits.
#![forbid(unsafe_code)]

mod leases;

use std::sync::{Mutex, MutexGuard, PoisonError};

use commands::memory::{MemoryServer, Outcome, Ticket, Value};
use commands::share::Share;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

/// An error reply.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
struct ErrorReply {
    /// The text of the error. It begins with the error's code.
    #[pyo3(get)]
    text: String,
}

/// A call that waits.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
struct Waits {
    /// The number that identifies the call in ended(), take_reply() and withdraw().
    #[pyo3(get)]
    ticket: u64,
}

/// A server in memory: its keys, and the commands on them.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
struct Engine {
    server: Mutex<MemoryServer>,
}

/// Fills bytes with random ones. Does not call Python: the engine is locked, and Python might switch to a thread that waits
/// for the lock without letting go of the interpreter.
fn fill_random(bytes: &mut [u8]) {
    // Without a source of randomness ids would repeat, but Linux always has one.
    let _ = getrandom::fill(bytes);
}

/// A word of a command, as bytes. A number is kept as its decimal digits.
enum Word<'a> {
    Text(&'a [u8]),
    Number(String),
}

/// Reads a word of a command: a str, bytes or an int.
fn word<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<Word<'a>> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Word::Text(text.to_str()?.as_bytes()));
    }
    if value.cast::<PyInt>().is_ok() {
        return Ok(Word::Number(match value.extract::<i64>() {
            Ok(number) => number.to_string(),
            Err(_) => value.str()?.to_string(),
        }));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Word::Text(bytes.as_bytes()));
    }
    let repr = value.repr()?;
    Err(PyTypeError::new_err(format!(
        "a key, an id and a time zone must be str or bytes, not {repr}"
    )))
}

/// Converts a reply into objects of Python.
fn to_python<'py>(py: Python<'py>, value: Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Nil => py.None().into_bound(py),
        Value::Integer(number) => number.into_pyobject(py)?.into_any(),
        Value::Bulk(bytes) => PyBytes::new(py, &bytes).into_any(),
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(to_python(py, value)?)?;
            }
            list.into_any()
        }
        Value::Error(text) => Bound::new(py, ErrorReply { text })?.into_any(),
    })
}

impl Engine {
    /// Locks the server. A call that panicked left its key either unchanged or completely written, so others may go on.
    fn server(&self) -> MutexGuard<'_, MemoryServer> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Engine {
    /// Creates a server that has a share of each limit, above 0 and at most 1.
    #[new]
    #[pyo3(signature = (share=1.0))]
    fn new(share: f64) -> PyResult<Engine> {
        let share = Share::nearest(share).ok_or_else(|| {
            let range = "above 0 (from 1/10000) and at most 1";
            PyValueError::new_err(format!("share must be {range}, not {share}"))
        })?;
        Ok(Engine { server: Mutex::new(MemoryServer::with_share(share, fill_random)) })
    }

    /// Executes a command at a time in Unix microseconds. Returns its reply; `Waits` if the call waits.
    fn call<'py>(
        &self,
        py: Python<'py>,
        words: &Bound<'py, PyTuple>,
        now_us: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let objects: Vec<_> = words.iter().collect();
        let words = objects.iter().map(word).collect::<PyResult<Vec<_>>>()?;
        let argv = words.iter().map(|word| match word {
            Word::Text(text) => *text,
            Word::Number(number) => number.as_bytes(),
        });
        let argv: Vec<&[u8]> = argv.collect();
        let outcome = self.server().call(&argv, now_us);
        match outcome {
            Outcome::Reply(value) => to_python(py, value),
            Outcome::Waits(ticket) => {
                Ok(Bound::new(py, Waits { ticket: ticket.number() })?.into_any())
            }
        }
    }

    /// Returns the tickets of the calls whose wait is over and whose reply was not taken yet.
    fn ended(&self, now_us: u64) -> Vec<u64> {
        self.server().ended(now_us).into_iter().map(Ticket::number).collect()
    }

    /// Takes the reply to a call that waited; None if its wait is not over. From then on withdraw() gives nothing back.
    fn take_reply<'py>(
        &self,
        py: Python<'py>,
        ticket: u64,
        now_us: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let reply = self.server().take_reply(Ticket::from_number(ticket), now_us);
        reply.map(|value| to_python(py, value)).transpose()
    }

    /// Returns when ended() should be called next, in Unix microseconds; None while no call waits.
    fn next_us(&self) -> Option<u64> {
        self.server().next_us()
    }

    /// Ends the wait of a call whose caller is gone. A grant whose reply was not taken is given back.
    fn withdraw(&self, ticket: u64, now_us: u64) {
        self.server().withdraw(Ticket::from_number(ticket), now_us);
    }
}

/// What the client decides in the process.
#[pymodule]
mod _engine {
    #[pymodule_export]
    use super::leases::{Leases, Round};
    #[pymodule_export]
    use super::{Engine, ErrorReply, Waits};
}
