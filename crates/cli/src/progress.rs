//! A progress bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;

/// A bar over bytes on standard error; nothing where that is no terminal, or with `--quiet`.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// For an estimated total of bytes.
    pub(crate) fn new(total_bytes: u64, quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let style = "{elapsed_precise} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// The bar as a function of what is done and how much there is.
    pub(crate) fn to_callback(&self) -> extant_image::Progress {
        let bar = self.0.clone();
        Arc::new(move |done, of| {
            bar.set_length(of);
            bar.set_position(done);
        })
    }

    /// Runs a function that prints, with the bar hidden.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
