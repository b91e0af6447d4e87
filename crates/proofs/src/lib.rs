//! Proofs about the engine: searches through all states of small worlds, and a judge of histories that were recorded on
//! real servers.

/// Defines an enum and `ALL`, the list of its variants.
macro_rules! listed {
    ($(#[$meta:meta])* $name:ident { $(#[$doc:meta] $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[$doc] $variant,)+
        }

        impl $name {
            /// All variants.
            pub const ALL: &[$name] = &[$($name::$variant),+];
        }
    };
}

pub mod history;
pub mod leases;
pub mod mistake;
pub mod outcome;
pub mod search;
pub mod waiting;
pub mod world;
pub mod worlds;
