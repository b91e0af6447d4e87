//! What the server sees of the module: loading, commands, settings and INFO.

mod build;
mod info;
mod load;
mod log;
pub mod registration;
mod settings;
mod unload;
