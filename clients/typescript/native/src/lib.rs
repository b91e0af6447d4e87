//! The server in memory, and the leases of local limits, as a WebAssembly module without imports: the time and random numbers
//! are arguments. An instance of the module is one server, or any number of leases.
//!
//! The words of a command are written to [`input`]: for each word its length, as four little-endian bytes, and its bytes.
//! [`call`] returns the length of a reply that is an array of integers, which are 64-bit floats at [`numbers`]. Any other
//! reply is JSON at [`output`], and [`call`] returns -1. If the call waits, it returns -2, and its ticket is at [`numbers`].
// The only unsafe code is the attribute that gives exports their names.
#![deny(unsafe_op_in_unsafe_fn)]

mod leases;

use std::cell::RefCell;
use std::fmt::Write;

use commands::memory::{MemoryServer, Outcome, Ticket, Value};
use commands::share::Share;

/// The result of [`call`] for a reply that is JSON at [`output`], [`output_len`] bytes long.
const JSON: i32 = -1;
/// The result of [`call`] if the call waits. Its ticket is the number at [`numbers`].
const WAITS: i32 = -2;

#[derive(Default)]
struct Instance {
    server: Option<MemoryServer>,
    input: Vec<u8>,
    output: String,
    numbers: Vec<f64>,
}

thread_local! {
    static INSTANCE: RefCell<Instance> = RefCell::default();
}

fn with<T>(body: impl FnOnce(&mut Instance) -> T) -> T {
    INSTANCE.with_borrow_mut(body)
}

/// Generates random numbers from a seed (SplitMix64). They only have to tell the ids of one instance apart.
struct Random(u64);

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            chunk.copy_from_slice(&mixed.to_le_bytes()[..chunk.len()]);
        }
    }
}

fn us(time: f64) -> u64 {
    // The cast saturates, which is right at both ends.
    time as u64
}

/// Creates the server of the instance, with a share of each limit. Returns false if the share is not valid.
#[no_mangle]
pub extern "C" fn start(seed: u64, share: f64) -> bool {
    let Some(share) = Share::nearest(share) else { return false };
    let mut random = Random(seed);
    with(|instance| {
        instance.server = Some(MemoryServer::with_share(share, move |bytes| random.fill(bytes)));
    });
    true
}

/// Returns the address at which words are to be written, with room for `len` bytes. The next call of this may move it.
#[no_mangle]
pub extern "C" fn input(len: usize) -> *mut u8 {
    with(|instance| {
        if instance.input.len() < len {
            instance.input.resize(len, 0);
        }
        instance.input.as_mut_ptr()
    })
}

/// Returns the address of the last numbers.
#[no_mangle]
pub extern "C" fn numbers() -> *const f64 {
    with(|instance| instance.numbers.as_ptr())
}

/// Returns the address of the last output.
#[no_mangle]
pub extern "C" fn output() -> *const u8 {
    with(|instance| instance.output.as_ptr())
}

/// Returns the length of the last output in bytes.
#[no_mangle]
pub extern "C" fn output_len() -> usize {
    with(|instance| instance.output.len())
}

fn words(mut input: &[u8]) -> Vec<&[u8]> {
    let mut words = Vec::with_capacity(16);
    while let Some((len, rest)) = input.split_first_chunk() {
        let Some((word, rest)) = rest.split_at_checked(u32::from_le_bytes(*len) as usize) else {
            break;
        };
        words.push(word);
        input = rest;
    }
    words
}

fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}

/// Appends a reply as JSON. Nil becomes null, and an error becomes an object with its text.
fn json(value: &Value, out: &mut String) {
    match value {
        Value::Nil => out.push_str("null"),
        Value::Integer(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Bulk(bytes) => quoted(&String::from_utf8_lossy(bytes), out),
        Value::Array(values) => {
            out.push('[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                json(value, out);
            }
            out.push(']');
        }
        Value::Error(text) => {
            out.push_str("{\"error\":");
            quoted(text, out);
            out.push('}');
        }
    }
}

impl Instance {
    fn put(&mut self, value: &Value) -> i32 {
        self.numbers.clear();
        if let Value::Array(values) = value {
            self.numbers.extend(values.iter().map_while(|value| match value {
                Value::Integer(number) => Some(*number as f64),
                _ => None,
            }));
            if self.numbers.len() == values.len() {
                return values.len() as i32;
            }
        }
        self.write(value);
        JSON
    }

    /// Writes a value to the output.
    fn write(&mut self, value: &Value) {
        self.output.clear();
        json(value, &mut self.output);
    }
}

/// Executes the command whose words are the first `len` bytes of the input, at a time in Unix microseconds.
#[no_mangle]
pub extern "C" fn call(len: usize, now: f64) -> i32 {
    with(|instance| {
        let argv = words(instance.input.get(..len).unwrap_or_default());
        let Some(server) = &mut instance.server else { return JSON };
        match server.call(&argv, us(now)) {
            Outcome::Reply(value) => instance.put(&value),
            Outcome::Waits(ticket) => {
                instance.numbers.clear();
                instance.numbers.push(ticket.number() as f64);
                WAITS
            }
        }
    })
}

/// Writes the calls whose wait is over to the output, as JSON: `[[ticket, reply], ...]`. Returns their number.
#[no_mangle]
pub extern "C" fn take_ended(now: f64) -> usize {
    with(|instance| {
        let ended = match &mut instance.server {
            Some(server) => server.take_ended(us(now)),
            None => Vec::new(),
        };
        let count = ended.len();
        let number =
            |ticket: Ticket| Value::Integer(i64::try_from(ticket.number()).unwrap_or(i64::MAX));
        let pairs =
            ended.into_iter().map(|(ticket, reply)| Value::Array(vec![number(ticket), reply]));
        instance.write(&Value::Array(pairs.collect()));
        count
    })
}

/// Returns when [`take_ended`] should be called next, in Unix microseconds; below 0 while no call waits.
#[no_mangle]
pub extern "C" fn next_us() -> f64 {
    with(|instance| match instance.server.as_ref().and_then(MemoryServer::next_us) {
        Some(next) => next as f64,
        None => -1.0,
    })
}

/// Ends the wait of a call that was cancelled.
#[no_mangle]
pub extern "C" fn withdraw(ticket: f64, now: f64) {
    with(|instance| {
        if let Some(server) = &mut instance.server {
            server.withdraw(Ticket::from_number(ticket as u64), us(now));
        }
    });
}
