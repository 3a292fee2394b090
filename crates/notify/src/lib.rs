//! Tidegate notify.
