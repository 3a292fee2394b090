//! Tidegate delivery.
