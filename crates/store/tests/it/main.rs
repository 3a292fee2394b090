//! What the store promises, each promise a test. Most run on the simulated disk, so that crashes are exact.

mod batches;
mod corpus;
mod crash;
mod double_crash;
mod environment;
mod format;
mod found;
mod journey;
mod limits;
mod reading;
mod recovery;
mod seeded;
mod setup;
mod trouble;
