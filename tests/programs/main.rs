//! Tests that run programs of other languages: the clients in clients/, those that people use, and the examples. They are
//! what `make test-clients` runs with all that it installs. A file is a module: `cargo test --test programs helpers::`.

mod clients;
mod examples;
mod helpers;
mod memory_limiter;
mod playground;
