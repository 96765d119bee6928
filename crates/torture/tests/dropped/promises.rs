//! What a file may contain after a power cut.

/// An operation on a file whose caller may have left.
pub(crate) struct Step {
    /// Number of device log events when it began, and when it had returned or was dropped.
    pub(crate) began: usize,
    pub(crate) ended: usize,
    /// The operation, for the message of a broken promise.
    pub(crate) op: String,
    /// Whether it made the file's contents durable.
    pub(crate) is_synced: bool,
    /// Intended contents after it.
    pub(crate) new: Vec<u8>,
    /// Actual contents after it.
    pub(crate) after: Vec<u8>,
}

/// The operations on a file, in order.
pub(crate) struct History {
    pub(crate) name: String,
    steps: Vec<Step>,
    /// Set if later contents are unknown.
    is_cut: bool,
}

impl History {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), steps: Vec::new(), is_cut: false }
    }

    pub(crate) fn add(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(crate) fn ends_here(&mut self) {
        self.is_cut = true;
    }

    pub(crate) fn newest(&self) -> Vec<u8> {
        self.steps.last().map_or_else(Vec::new, |step| step.after.clone())
    }

    /// Whether the file may have these contents after a cut at this many events.
    ///
    /// # Errors
    /// The broken promise.
    pub(crate) fn explain(&self, cut: usize, found: Option<&[u8]>) -> Result<(), String> {
        let name = &self.name;
        let Some(synced) = self.steps.iter().rposition(|step| step.is_synced && step.ended <= cut) else {
            return Ok(());
        };
        let Some(found) = found else { return Err(format!("{name} is gone")) };
        let base = &self.steps[synced].after;
        let later: Vec<&Step> =
            self.steps[synced + 1..].iter().take_while(|step| step.began <= cut).collect();
        if self.is_cut && synced + 1 + later.len() == self.steps.len() {
            return Ok(());
        }
        let states = || later.iter().flat_map(|step| [&step.new, &step.after]).chain([base]);
        let (least, most) = states()
            .fold((usize::MAX, 0), |(least, most), state| (least.min(state.len()), most.max(state.len())));
        if !(least..=most).contains(&found.len()) {
            return Err(format!("{name} has {} bytes, not {least} to {most}", found.len()));
        }
        let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
        for (at, &found) in found.iter().enumerate() {
            if !states().any(|state| byte(state, at) == found) {
                let was = byte(base, at);
                let words = format!("{name}: byte {at} is {found}; it was synced as {was} in step {synced}");
                let told = self.steps.iter().enumerate().map(|(n, step)| {
                    let Step { began, ended, op, .. } = step;
                    format!("{n}: {began} to {ended}, {op}: {}", byte(&step.after, at))
                });
                return Err(format!("{words}\n{}", told.collect::<Vec<_>>().join("\n")));
            }
        }
        Ok(())
    }
}
