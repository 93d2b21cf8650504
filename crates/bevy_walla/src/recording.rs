//! Recordings of an app's session.

use std::path::Path;
use std::sync::Arc;

use bevy_app::App;
use bevy_ecs::prelude::*;
use walla_record::{RecordError, Recorder, RecordingFile, RecordingStatus};
use walla_runtime::EngineClient;

use crate::error::WallaError;

/// State of the recording that [`WallaPlugin::record_to`](crate::WallaPlugin::record_to) has begun.
#[derive(Resource, Clone, Debug)]
pub struct WallaRecorder(Result<RecordingStatus, Arc<RecordError>>);

impl WallaRecorder {
    /// Whether the session is being recorded.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.0.as_ref().is_ok_and(RecordingStatus::is_recording)
    }

    /// Why the session is not recorded, or not any more. The game goes on.
    #[must_use]
    pub fn error(&self) -> Option<&RecordError> {
        match &self.0 {
            Ok(status) => status.error(),
            Err(error) => Some(error),
        }
    }

    /// Bytes of the file so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, RecordingStatus::bytes)
    }
}

/// The client of an app, in a recorder if there is a path.
pub(crate) fn recorded(
    app: &mut App,
    path: Option<&Path>,
    client: Result<Box<dyn EngineClient>, WallaError>,
) -> Result<Box<dyn EngineClient>, WallaError> {
    let Some(path) = path else { return client };
    let client = client?;
    match RecordingFile::create(path) {
        Ok(file) => {
            let recorder = Recorder::with_file(file, client);
            app.insert_resource(WallaRecorder(Ok(recorder.status())));
            Ok(Box::new(recorder))
        }
        Err(error) => {
            tracing::warn!(target: "walla::record", %error, "the session is not recorded");
            app.insert_resource(WallaRecorder(Err(Arc::new(error))));
            Ok(client)
        }
    }
}
