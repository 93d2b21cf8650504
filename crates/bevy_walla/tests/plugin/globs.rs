//! Glob imports of the crate and of its prelude leave Bevy's names as they are.

/// `use bevy_walla::*` next to Bevy's preludes.
mod the_whole_crate {
    use bevy_app::prelude::*;
    use bevy_ecs::prelude::*;
    use bevy_time::prelude::*;
    use bevy_walla::*;

    #[derive(Event)]
    struct Bell;

    #[derive(Resource, Default)]
    struct Rings(u32);

    struct Ring;

    impl Command for Ring {
        type Out = ();

        fn apply(self, world: &mut World) {
            world.trigger(Bell);
        }
    }

    fn is_event<E: Event>(_: &E) {}

    #[test]
    fn glob_imports_keep_bevys_traits() {
        is_event(&Bell);
        let mut app = App::new();
        app.add_plugins(WallaPlugin::new(engines::EngineSetup::client(scripted())))
            .init_resource::<Rings>()
            .add_observer(|_: On<Bell>, mut rings: ResMut<Rings>| rings.0 += 1)
            .add_systems(Update, |mut commands: Commands| commands.queue(Ring));
        app.world_mut().spawn((Name::new("Greta"), Agent::persona("You are Greta.")));
        app.update();
        assert_eq!(app.world().resource::<Rings>().0, 1);
        assert!(app.world().get_resource::<Time<Virtual>>().is_none());
    }

    fn scripted() -> impl Fn() -> Box<dyn engine::EngineClient> + Send + Sync + 'static {
        scripted::ScriptedEngine::new(|_, _| "Yes.".into()).new_client()
    }
}

/// The preludes of Bevy and of the crate.
mod the_prelude {
    use bevy_app::prelude::*;
    use bevy_ecs::prelude::*;
    use bevy_time::prelude::*;
    use bevy_walla::ask::Cancel;
    use bevy_walla::prelude::*;

    #[derive(Event, Message)]
    struct Both;

    /// An engine's command by its path, next to the trait of the same name.
    fn is_ask(command: &bevy_walla::engine::Command) -> bool {
        matches!(command, bevy_walla::engine::Command::Ask { .. })
    }

    fn add<E: Event + Message>(app: &mut App) -> &mut App {
        app.add_message::<E>().add_observer(|_: On<E>, _: Res<Time>, _: Commands| {})
    }

    #[test]
    fn glob_imports_keep_bevys_traits() {
        add::<Both>(&mut App::new());
        let agent = bevy_walla::engine::AgentId(1);
        assert!(!is_ask(&bevy_walla::engine::Command::RemoveAgent { agent }));
        let _speaks = |cancel: On<Cancel>, mut commands: Commands| {
            commands.ask(cancel.agent, "Why?");
        };
    }
}

/// A glob import of the prelude adds few names.
#[test]
fn the_prelude_is_small() {
    let source = include_str!("../../src/lib.rs");
    let (_, prelude) = source.split_once("pub mod prelude {").expect("there is a prelude");
    let (prelude, _) = prelude.split_once("\n}\n").expect("it ends");
    let is_name = |word: &&str| word.starts_with(char::is_uppercase) || *word == "walla_ready";
    let names = prelude.split(|c: char| !c.is_alphanumeric() && c != '_').filter(is_name).count();
    assert!((30..=35).contains(&names), "{names} names");
}
