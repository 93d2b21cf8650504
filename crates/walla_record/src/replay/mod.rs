//! Verifies a recording with a model.

mod report;
mod run;

use std::time::Duration;

use walla_runtime::EngineClient;

pub use self::report::{Difference, Differing, ReplayReport};
use self::run::{Run, ready};
use crate::recording::{EngineInfo, Recording};
use crate::session::Session;
use crate::timeline::Timeline;

/// Repeats a session on an engine, and compares every token.
///
/// # Reproducible replies
/// An engine with the same model, the same kind of device, the same kernels and the same
/// [settings](walla_runtime::TextSettings) gives the same tokens, at any batch, number of threads,
/// number of slots, budget and pacing. Other devices and other kernels round differently; they are
/// compared up to the first difference. Servers ensure nothing.
///
/// Each command is sent when everything is done that the engine had done before it for this agent,
/// so time has no influence: see the table below. A reply that time ended (a cancel, a deadline, a
/// failed device, the end of the recording) is compared up to this point.
///
/// | in the recording | in the replay |
/// |---|---|
/// | reply with a natural end | all tokens, text, calls and the end are compared |
/// | reply that time ended | the same number of tokens is compared, and the conversation stays equal |
/// | ask that never began | left out |
/// | pauses, frames, levels of detail | without influence on tokens |
///
/// Use a client that is [paced by frames](walla_runtime::Pacing::PerFrame): the replay grants no
/// frame while a copy of an agent that speaks is due, so that it is made within the same reply.
#[derive(Debug)]
pub struct Replay<'a> {
    session: Session,
    timeline: Timeline,
    recording: &'a Recording,
    max_wait: Duration,
}

/// Why a replay could not run to its end.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The engine has another model.
    #[error(
        "the recording is of the model {} ({:016x}), the engine has {} ({:016x})",
        recorded.model.as_deref().unwrap_or("without a name"), recorded.fingerprint,
        given.model.as_deref().unwrap_or("one without a name"), given.fingerprint
    )]
    OtherModel {
        /// The recorded engine.
        recorded: Box<EngineInfo>,
        /// The engine of the replay.
        given: Box<EngineInfo>,
    },
    /// The engine has other settings than the recorded one, on which its replies depend.
    #[error("the engine has another {setting}: {given}, recorded {recorded}")]
    OtherSetting {
        /// Name of the setting.
        setting: &'static str,
        /// The recorded value.
        recorded: String,
        /// The engine's value.
        given: String,
    },
    /// The recording names no model: it is not of one local engine, or ends before it was loaded.
    #[error("the recording names no model, so no engine can repeat it")]
    NoModel,
    /// The engine has failed or was stopped.
    #[error("the engine has ended: {0}")]
    EngineGone(String),
    /// The engine made no progress.
    #[error("no progress for {seconds} s: {waiting} replies wait")]
    Stuck {
        /// The limit.
        seconds: u64,
        /// Number of replies in progress.
        waiting: usize,
    },
}

impl<'a> Replay<'a> {
    /// A replay of this recording.
    #[must_use]
    pub fn new(recording: &'a Recording) -> Self {
        let session = Session::new(recording);
        let timeline = Timeline::new(recording, &session);
        Self { session, timeline, recording, max_wait: Duration::from_secs(120) }
    }

    /// Maximum time without progress. Default: 120 s.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Checks that an engine can repeat the recording: the same model and the same settings.
    ///
    /// # Errors
    /// [`ReplayError::OtherModel`], [`ReplayError::OtherSetting`], [`ReplayError::NoModel`].
    pub fn check(&self, client: &dyn EngineClient) -> Result<(), ReplayError> {
        let recorded = self.recording.engine().ok_or(ReplayError::NoModel)?;
        let given = client.model().map(|card| EngineInfo::new(card, true));
        let given = given.ok_or(ReplayError::NoModel)?;
        if given.fingerprint != recorded.fingerprint {
            let (recorded, given) = (Box::new(recorded.clone()), Box::new(given));
            return Err(ReplayError::OtherModel { recorded, given });
        }
        let shown = |option: &Option<String>| option.as_deref().unwrap_or("none").to_owned();
        let settings = |engine: &EngineInfo| {
            [
                ("context_tokens", engine.context_tokens.to_string()),
                ("kv_tokens", engine.kv_tokens.to_string()),
                ("kv_type", engine.kv_type.clone()),
                ("context_shift", engine.context_shift.to_string()),
                ("pre_tokenizer", shown(&engine.pre_tokenizer)),
                ("template", shown(&engine.template)),
            ]
        };
        for ((setting, recorded), (_, given)) in
            settings(recorded).into_iter().zip(settings(&given))
        {
            if recorded != given {
                return Err(ReplayError::OtherSetting { setting, recorded, given });
            }
        }
        Ok(())
    }

    /// Waits until the engine is ready, checks it, and repeats the session. Blocks until the end:
    /// do not call it in a game loop.
    ///
    /// # Errors
    /// As [`check`](Self::check); [`ReplayError::EngineGone`], [`ReplayError::Stuck`].
    pub fn run(&self, client: &dyn EngineClient) -> Result<ReplayReport, ReplayError> {
        self.run_with_progress(client, |_| {})
    }

    /// As [`run`](Self::run); `progress` receives the share of the work that is done, from 0 to 1.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with_progress(
        &self,
        client: &dyn EngineClient,
        progress: impl FnMut(f32),
    ) -> Result<ReplayReport, ReplayError> {
        let is_logged = client.set_logged(true);
        ready(client)?;
        self.check(client)?;
        let mut run = Run::new(self, client, is_logged);
        let result = run.run(progress);
        run.remove_agents();
        client.set_logged(false);
        result.map(|()| run.report())
    }
}
