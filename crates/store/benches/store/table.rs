//! The table that the bench prints: what was measured, against what, and whether it is what we want.

use std::fmt;

/// What a row is held against.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for comparison; nothing depends on it.
    None,
}

impl Goal {
    fn is_met(self, measured: f64) -> Option<bool> {
        match self {
            Goal::AtLeast(goal) => Some(measured >= goal),
            Goal::AtMost(goal) => Some(measured <= goal),
            Goal::None => None,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtLeast(goal) => write!(f, "at least {goal}"),
            Goal::AtMost(goal) => write!(f, "at most {goal}"),
            Goal::None => f.write_str("-"),
        }
    }
}

/// One line of the table.
pub(crate) struct Row {
    what: String,
    against: String,
    /// None if it cannot be measured here; `remark` says why.
    measured: Option<f64>,
    /// What the measured figure counts: nothing for a ratio.
    unit: &'static str,
    goal: Goal,
    /// The absolute figures behind the ratio: they are this machine's.
    remark: String,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>, against: impl Into<String>, measured: f64, goal: Goal) -> Row {
        let (what, against) = (what.into(), against.into());
        Row { what, against, measured: Some(measured), unit: "", goal, remark: String::new() }
    }

    pub(crate) fn missing(
        what: impl Into<String>,
        against: impl Into<String>,
        goal: Goal,
        why: impl Into<String>,
    ) -> Row {
        let (what, against, remark) = (what.into(), against.into(), why.into());
        Row { what, against, measured: None, unit: "", goal, remark }
    }

    pub(crate) fn unit(mut self, unit: &'static str) -> Row {
        self.unit = unit;
        self
    }

    pub(crate) fn remark(mut self, remark: impl Into<String>) -> Row {
        self.remark = remark.into();
        self
    }

    pub(crate) fn print_head() {
        println!("| what | against | ratio | goal | met | figures of this machine |");
        println!("|---|---|---|---|---|---|");
    }

    pub(crate) fn print(&self) {
        let measured = match self.measured {
            Some(value) if value >= 20.0 => format!("{value:.0}{}", self.unit),
            Some(value) => format!("{value:.2}{}", self.unit),
            None => "not available".to_owned(),
        };
        let met = match self.measured.and_then(|measured| self.goal.is_met(measured)) {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "-",
        };
        let Row { what, against, unit, goal, remark, .. } = self;
        let unit = if matches!(goal, Goal::None) { "" } else { unit };
        println!("| {what} | {against} | {measured} | {goal}{unit} | {met} | {remark} |");
    }
}
