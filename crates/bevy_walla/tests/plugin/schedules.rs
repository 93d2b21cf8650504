//! Schedules of the plugin: fixed time steps, one schedule for everything, and a schedule that the
//! app runs itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::ScheduleLabel;
use bevy_time::{Fixed, Time, TimePlugin, TimeUpdateStrategy, Virtual};
use bevy_walla::ask::Cancel;
use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{
    Capabilities, Command, EngineClient, EngineState, Event as EngineEvent, TrySendError,
};
use bevy_walla::engines::EngineSetup;
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;

/// The fixed time step.
const STEP: Duration = Duration::from_millis(10);

/// An app whose plugin runs in fixed time steps, and whose updates take `update`.
fn fixed(plugin: WallaPlugin, update: Duration) -> App {
    let mut app = app_with(plugin.schedules(FixedPreUpdate, FixedPostUpdate));
    app.add_plugins(TimePlugin)
        .insert_resource(Time::<Fixed>::from_duration(STEP))
        .insert_resource(TimeUpdateStrategy::ManualDuration(update));
    app.update(); // takes no time
    app
}

fn counting(engine: &ScriptedEngine) -> WallaPlugin {
    WallaPlugin::new(engine)
}

fn counter() -> ScriptedEngine {
    ScriptedEngine::new(|_, _| "one two three four".into())
}

#[test]
fn agents_answer_in_fixed_time_steps() {
    let engine = counter();
    let mut app = fixed(counting(&engine), STEP);
    app.add_systems(FixedUpdate, |mut commands: Commands, agents: Query<Entity, Added<Agent>>| {
        for agent in &agents {
            commands.ask(agent, "count");
        }
    });
    let odo = spawn(&mut app, "Odo");
    updates(&mut app, 1);
    assert_eq!(engine.frames(), 1, "an ask is sent in its time step");
    updates(&mut app, 10);
    assert_eq!(turns(&app, odo), ["count", "one two three four"]);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"]);
}

#[test]
fn each_time_step_of_an_update_is_a_frame() {
    let engine = counter().endless();
    let mut app = fixed(counting(&engine), 3 * STEP);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    updates(&mut app, 1);
    for _ in 0..5 {
        let before = engine.frames();
        updates(&mut app, 1);
        assert_eq!(engine.frames() - before, 3);
    }
    assert!(speech(&app, odo).text().starts_with("one two three four"));
}

#[test]
fn nothing_is_lost_in_updates_without_a_time_step() {
    let engine = counter();
    let mut app = fixed(counting(&engine), STEP / 10);
    let [odo, greta, mara] = ["Odo", "Greta", "Mara"].map(|name| spawn(&mut app, name));
    updates(&mut app, 2);
    ask(&mut app, odo, "count");
    app.world_mut().write_message(Ask::new(greta, "count"));
    ask(&mut app, mara, "count");
    app.world_mut().trigger(Cancel::new(mara));
    updates(&mut app, 7);
    assert_eq!(engine.frames(), 0);
    updates(&mut app, 100);
    for agent in [odo, greta] {
        assert_eq!(turns(&app, agent), ["count", "one two three four"]);
    }
    let mut ends = log(&app).only("finished");
    ends.sort_unstable();
    assert_eq!(ends, ["Cancelled", "EndOfTurn", "EndOfTurn"]);
    assert!(engine.frames() <= 12, "{} frames", engine.frames());
}

/// Passes everything on and counts the calls of `set_paused`.
struct Paused(Box<dyn EngineClient>, Arc<AtomicU32>);

impl EngineClient for Paused {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.0.try_send(command)
    }

    fn try_recv(&self) -> Option<EngineEvent> {
        self.0.try_recv()
    }

    fn frame(&self) {
        self.0.frame();
    }

    fn set_paused(&self, is_paused: bool) {
        assert_eq!(self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(2), is_paused);
        self.0.set_paused(is_paused);
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn state(&self) -> EngineState {
        self.0.state()
    }

    fn stats(&self) -> EngineStats {
        self.0.stats()
    }
}

/// No time step runs while the time is paused, and the engine knows the reason.
#[test]
fn a_pause_of_the_time_is_a_pause_of_the_engine() {
    for pause_with_time in [false, true] {
        let engine = counter();
        let (scripted, told) = (engine.new_client(), Arc::new(AtomicU32::new(0)));
        let counter = Arc::clone(&told);
        let plugin = WallaPlugin::new(EngineSetup::client(move || -> Box<dyn EngineClient> {
            Box::new(Paused(scripted(), Arc::clone(&counter)))
        }));
        let settings = WallaSettings { pause_with_time, ..WallaSettings::default() };
        let mut app = fixed(plugin.settings(settings), STEP);
        let odo = spawn(&mut app, "Odo");
        ask(&mut app, odo, "count");
        updates(&mut app, 4);
        app.world_mut().resource_mut::<Time<Virtual>>().pause();
        updates(&mut app, 2);
        let frames = engine.frames();
        updates(&mut app, 20);
        assert_eq!(engine.frames(), frames);
        assert_eq!(told.load(Ordering::Relaxed), u32::from(pause_with_time));
        app.world_mut().resource_mut::<Time<Virtual>>().unpause();
        updates(&mut app, 10);
        assert_eq!(turns(&app, odo), ["count", "one two three four"]);
        assert_eq!(told.load(Ordering::Relaxed), 2 * u32::from(pause_with_time));
    }
}

/// A pause by the settings applies in time steps, too.
#[test]
fn a_pause_by_the_settings_stops_time_steps() {
    let engine = counter();
    let mut app = fixed(counting(&engine), 2 * STEP);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    app.world_mut().resource_mut::<WallaSettings>().paused = true;
    updates(&mut app, 5);
    assert_eq!(engine.frames(), 0);
    app.world_mut().resource_mut::<WallaSettings>().paused = false;
    updates(&mut app, 5);
    assert_eq!(turns(&app, odo), ["count", "one two three four"]);
}

/// A schedule that the app runs itself.
#[derive(ScheduleLabel, Clone, Debug, PartialEq, Eq, Hash)]
struct Control;

#[test]
fn all_sets_can_be_in_one_schedule() {
    let engine = counter();
    let plugin = counting(&engine).schedules(Control, Control);
    let mut app = app_with(plugin);
    app.init_schedule(Control);
    #[derive(Resource, Default)]
    struct Order(Vec<&'static str>);
    let note = |name: &'static str| move |mut order: ResMut<Order>| order.0.push(name);
    app.init_resource::<Order>().add_systems(
        Control,
        (
            note("after publish").after(WallaSystems::Publish).before(WallaSystems::Collect),
            note("after submit").after(WallaSystems::Submit),
        ),
    );
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    for _ in 0..10 {
        app.world_mut().run_schedule(Control);
        app.update();
    }
    assert_eq!(turns(&app, odo), ["count", "one two three four"]);
    assert_eq!(app.world().resource::<Order>().0[..2], ["after publish", "after submit"]);
    assert_eq!(app.world().resource::<Walla>().asks_waiting(), 0);
}

/// Counters are measured in updates with a time step only.
#[test]
fn the_token_rate_counts_whole_time_steps() {
    use bevy_diagnostic::{Diagnostic, DiagnosticPath, DiagnosticsStore};
    let engine = counter().endless();
    let mut app = fixed(counting(&engine), STEP / 10);
    app.add_plugins(WallaDiagnosticsPlugin);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "count");
    updates(&mut app, 50);
    app.world_mut()
        .resource_mut::<DiagnosticsStore>()
        .iter_mut()
        .for_each(Diagnostic::clear_history);
    let frames = engine.frames();
    updates(&mut app, 100);
    let store = app.world().resource::<DiagnosticsStore>();
    let history = |path: DiagnosticPath| store.get(&path).unwrap().values().copied().collect();
    let rates: Vec<f64> = history(WallaDiagnosticsPlugin::TOKENS_PER_SECOND);
    assert!(rates.len().abs_diff((engine.frames() - frames) as usize) <= 1, "{rates:?}");
    assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
}
