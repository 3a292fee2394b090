//! Tidegate store.
mod seq;
pub use seq::Seq;
