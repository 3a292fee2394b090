//! What Tidegate promises, held against the whole: the library, the program as a process, and Apache Kafka.
//! Each file is one promise, each test's name a claim. `real_kafka` needs a node; `scripts/test` brings one.

mod dead_letters;
mod demo;
mod full;
mod http;
mod isolation;
mod journey;
mod real_kafka;
mod send;
mod setup;
mod stat;
