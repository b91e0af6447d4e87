//! The module's own algorithms, for the fuzz targets beside this: pure code that needs no server.

#[path = "../../src/limit/mod.rs"]
pub mod limit;
#[path = "../../src/limit/memory.rs"]
pub mod memory;
#[path = "../../src/text.rs"]
pub mod text;
