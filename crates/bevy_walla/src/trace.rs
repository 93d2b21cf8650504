//! The host's frames in a trace file.

use std::path::Path;

use bevy_app::prelude::*;
use bevy_ecs::message::MessageUpdateSystems;
use bevy_ecs::prelude::*;
use walla_trace::{TraceFile, host_span, now_nanos};

/// Lives as long as the app.
#[derive(Resource)]
struct Tracing {
    /// None if the environment names the file: then the engine's thread writes it.
    _file: Option<TraceFile>,
    frame_begin_nanos: u64,
}

/// Adds the file at `path`, and the marks of frames if anybody writes a file.
pub(crate) fn add(app: &mut App, path: Option<&Path>) {
    let file = path.and_then(TraceFile::start_or_log);
    if file.is_none() && !TraceFile::is_in_environment() {
        return;
    }
    app.insert_resource(Tracing { _file: file, frame_begin_nanos: now_nanos() })
        .add_systems(First, begin.before(MessageUpdateSystems))
        .add_systems(Last, end);
}

fn begin(mut tracing: ResMut<Tracing>) {
    tracing.frame_begin_nanos = now_nanos();
}

fn end(tracing: Res<Tracing>) {
    host_span("frame", tracing.frame_begin_nanos..now_nanos());
}
