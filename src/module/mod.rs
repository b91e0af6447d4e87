//! What the server sees of the module as a whole: loading, commands, settings, INFO and callbacks.

mod build;
mod info;
mod load;
mod log;
pub mod registration;
mod settings;
mod unload;
