//! Pauses of an app, by its settings or with its time.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_time::{Time, TimePlugin, Virtual};
use bevy_walla::ask::Cancel;
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

#[test]
fn a_paused_app_grants_no_frames_and_resumes_replies() {
    for with_time in [false, true] {
        let settings = WallaSettings { pause_with_time: with_time, ..WallaSettings::default() };
        let engine = ScriptedEngine::new(|_, _| "one two three four".into());
        let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
        app.add_plugins(TimePlugin);
        let [odo, greta] = ["Odo", "Greta"].map(|name| spawn(&mut app, name));
        let pause = |app: &mut App, is_paused: bool| {
            let mut time = app.world_mut().resource_mut::<Time<Virtual>>();
            if is_paused {
                time.pause();
            } else {
                time.unpause();
            }
            if !with_time {
                app.world_mut().resource_mut::<WallaSettings>().paused = is_paused;
            }
        };
        ask(&mut app, odo, "count");
        ask(&mut app, greta, "count");
        updates(&mut app, 4);
        pause(&mut app, true);
        let frames = engine.frames();
        updates(&mut app, 2);
        let said = speech(&app, odo).text().to_owned();
        updates(&mut app, 50);
        assert_eq!((engine.frames(), speech(&app, odo).text()), (frames, &*said));
        app.world_mut().trigger(Cancel::new(greta));
        ask(&mut app, odo, "again");
        updates(&mut app, 3);
        assert_eq!(log(&app).only("finished"), ["Cancelled"], "a cancel counts in a pause");
        pause(&mut app, false);
        updates(&mut app, 20);
        assert_eq!(
            turns(&app, odo),
            ["count", "one two three four", "again", "one two three four"]
        );
    }
    // Off by default: a game may stop its time while the player talks.
    let mut app = app(&echo());
    app.add_plugins(TimePlugin);
    app.world_mut().resource_mut::<Time<Virtual>>().pause();
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "x");
    updates(&mut app, 8);
    assert_eq!(turns(&app, odo), ["x", "Odo: x"]);
}
