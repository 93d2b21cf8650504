//! The host's frames in a trace file.

use std::path::Path;

use bevy_app::prelude::*;
use bevy_ecs::message::MessageUpdateSystems;
use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;
use walla_trace::{TraceFile, host_span, now_nanos};

/// Exists as long as the app.
#[derive(Resource)]
struct Tracing {
    /// `None` if the environment names the file: then the engine's thread writes it.
    _file: Option<TraceFile>,
    frame_begin_nanos: u64,
}

/// Starts the file at `path`, and marks frames if any trace file is written.
pub(crate) fn add(app: &mut App, path: Option<&Path>) {
    let file = path.and_then(TraceFile::start_or_log);
    if file.is_none() && !TraceFile::is_in_environment() {
        return;
    }
    app.insert_resource(Tracing { _file: file, frame_begin_nanos: now_nanos() })
        .add_systems(First, begin.before(MessageUpdateSystems))
        .add_systems(Last, end);
}

/// Runs on the frame's thread, like the plugin's other systems: another thread would have to wake
/// up first.
fn begin(mut tracing: ResMut<Tracing>, _here: NonSendMarker) {
    tracing.frame_begin_nanos = now_nanos();
}

fn end(tracing: Res<Tracing>, _here: NonSendMarker) {
    host_span("frame", tracing.frame_begin_nanos..now_nanos());
}
