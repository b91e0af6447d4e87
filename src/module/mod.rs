//! The module as the server sees it: loading, commands, settings and INFO.

mod build;
mod info;
mod load;
mod log;
pub mod registration;
mod settings;
mod unload;
