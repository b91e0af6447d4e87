//! The module as the server sees it: loading, commands, settings and INFO.

mod build;
mod command_docs;
pub mod dispatch;
mod info;
mod load;
mod registration;
mod server_traits;
mod settings;
mod unload;
