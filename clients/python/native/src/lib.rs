//! The server in memory as a class of Python, for MemoryLimiter.
#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use commands::memory::{MemoryServer, Outcome, Ticket, Value};
use commands::share::Share;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

/// An error reply.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
struct ErrorReply {
    /// Its text, which begins with its code.
    #[pyo3(get)]
    text: String,
}

/// A call that waits.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
struct Waits {
    /// The number by which take_ended() and withdraw() name it.
    #[pyo3(get)]
    ticket: u64,
}

/// Keys in memory, and the commands on them.
#[pyclass(frozen, module = "redis_ratelimit._engine")]
struct Engine {
    server: Mutex<MemoryServer>,
}

/// Random bytes of Python's own source.
fn fill_random(bytes: &mut [u8]) {
    Python::attach(|py| {
        let made = py.import("os").and_then(|os| os.call_method1("urandom", (bytes.len(),)));
        if let Ok(made) = made.and_then(|made| made.extract::<Vec<u8>>()) {
            bytes.iter_mut().zip(made).for_each(|(byte, random)| *byte = random);
        }
    });
}

fn real_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A word of a command. Numbers are written out.
enum Word<'a> {
    Text(&'a [u8]),
    Number(String),
}

fn word<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<Word<'a>> {
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(Word::Text(text.to_str()?.as_bytes()));
    }
    if given.cast_exact::<PyInt>().is_ok() {
        return Ok(Word::Number(match given.extract::<i64>() {
            Ok(number) => number.to_string(),
            Err(_) => given.str()?.to_string(),
        }));
    }
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(Word::Text(bytes.as_bytes()));
    }
    let shown = given.repr()?;
    Err(PyTypeError::new_err(format!(
        "a key, an id and a time zone must be str or bytes, not {shown}"
    )))
}

fn shown<'py>(py: Python<'py>, value: Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Nil => py.None().into_bound(py),
        Value::Integer(number) => number.into_pyobject(py)?.into_any(),
        Value::Bulk(bytes) => PyBytes::new(py, &bytes).into_any(),
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(shown(py, value)?)?;
            }
            list.into_any()
        }
        Value::Error(text) => Bound::new(py, ErrorReply { text })?.into_any(),
    })
}

impl Engine {
    /// A call that panicked left its key as it was or as it should be: others go on.
    fn server(&self) -> MutexGuard<'_, MemoryServer> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Engine {
    /// `share` is a number above 0 and at most 1.
    #[new]
    #[pyo3(signature = (share=1.0))]
    fn new(share: f64) -> PyResult<Engine> {
        let share = Share::nearest(share).ok_or_else(|| {
            let range = "above 0 (from 1/10000) and at most 1";
            PyValueError::new_err(format!("share must be {range}, not {share}"))
        })?;
        Ok(Engine { server: Mutex::new(MemoryServer::with_share(share, fill_random)) })
    }

    /// The reply to a command at a time in Unix microseconds; the system's time if none is given.
    #[pyo3(signature = (words, now_us=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        words: &Bound<'py, PyTuple>,
        now_us: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let given: Vec<_> = words.iter().collect();
        let words = given.iter().map(word).collect::<PyResult<Vec<_>>>()?;
        let argv = words.iter().map(|word| match word {
            Word::Text(text) => *text,
            Word::Number(number) => number.as_bytes(),
        });
        let argv: Vec<&[u8]> = argv.collect();
        let outcome = self.server().call(&argv, now_us.unwrap_or_else(real_us));
        match outcome {
            Outcome::Reply(value) => shown(py, value),
            Outcome::Waits(ticket) => {
                Ok(Bound::new(py, Waits { ticket: ticket.number() })?.into_any())
            }
        }
    }

    /// The waits that are over, each with its reply.
    #[pyo3(signature = (now_us=None))]
    fn take_ended<'py>(
        &self,
        py: Python<'py>,
        now_us: Option<u64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let ended = self.server().take_ended(now_us.unwrap_or_else(real_us));
        let list = PyList::empty(py);
        for (ticket, value) in ended {
            list.append((ticket.number(), shown(py, value)?))?;
        }
        Ok(list)
    }

    /// When take_ended() should be asked next, in Unix microseconds; None while nobody waits.
    fn next_us(&self) -> Option<u64> {
        self.server().next_us()
    }

    /// Ends a wait whose caller is gone.
    #[pyo3(signature = (ticket, now_us=None))]
    fn withdraw(&self, ticket: u64, now_us: Option<u64>) {
        self.server().withdraw(Ticket::of(ticket), now_us.unwrap_or_else(real_us));
    }
}

/// The engine of redis-ratelimit, for MemoryLimiter.
#[pymodule]
mod _engine {
    #[pymodule_export]
    use super::{Engine, ErrorReply, Waits};
}
