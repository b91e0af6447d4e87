//! What the server sees of the module as a whole: loading, commands, settings, INFO and callbacks.

mod build;
mod callbacks;
pub mod commands;
mod info;
mod load;
mod settings;
mod unload;
