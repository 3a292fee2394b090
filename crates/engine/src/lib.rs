//! Tidegate engine.
