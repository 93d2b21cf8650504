"""Words and phrases of the mobile service robot."""

from __future__ import annotations

from .grammar import Phrases
from .words import _words

ACTIONS = ("goto", "fetch", "deliver", "follow", "clean", "wait", "stop", "charge", "say", "refuse")
"""The closed list. Every reply is one object with ``action``, ``target`` and ``say`` (``deliver`` has ``item`` too)."""

ROOMS = _words("""
kitchen, lab, office, lobby, hallway, bedroom, bathroom, living room, garage, garden, basement, attic, library, workshop, storage room, meeting room, cafeteria,
reception, loading bay, warehouse, dock, elevator, balcony, terrace, pantry, laundry room, dining room, ward, pharmacy, operating room, server room, mail room, break room,
entrance, gym, studio, cellar, greenhouse, hangar, control room, classroom, canteen, archive, waiting room, lounge, nursery, roof, shop, clinic, printer room, cold store, courtyard, gate, bar, showroom, parking lot
""")
ITEMS = _words("""
coffee, cup of tea, glass of water, book, parcel, letter, towel, blanket, toolbox, wrench, screwdriver, sample, medicine, sandwich, apple, laptop, phone, charger, folder, key, box, bottle, tray,
first aid kit, umbrella, pillow, newspaper, plate, mug, battery, cable, remote control, bag, jacket, lunch, report, pen, stapler, bandage, bucket, mop, flowers, cake, pizza, hammer, drill, lamp, camera, keyboard, mail, trash bag, glasses, notebook, invoice, test tube, spare part, helmet, vase, cart
""")
FAR_PLACES = _words("""
moon, sun, sky, stars, clouds, ocean, sea, desert, jungle, Sahara, Milky Way, North Pole, South Pole, past, future, year 1920, year 3000, Middle Ages, Stone Age, Eiffel Tower, Great Wall, Himalayas, Alps, Atlantic, Pacific, equator, rainbow, volcano, next galaxy, universe,
bottom of the sea, bottom of the ocean, bottom of the lake, bottom of the volcano, middle of the ocean, middle of the desert, middle of the sun, center of the earth, center of the moon, center of the universe, center of the volcano, other side of the moon, other side of the earth, other side of the ocean, other side of the rainbow,
end of the world, end of the rainbow, end of time, end of the universe, edge of the world, edge of the universe, top of the clouds, top of the rainbow, top of Mount Everest, surface of the moon, surface of the sun, dark side of the moon, planet Mars, planet Jupiter, planet Venus, planet Saturn, land of dreams, land of the dead, realm of the dead,
Mars, Venus, Saturn, Jupiter, Pluto, Paris, Tokyo, London, Berlin, Rome, Madrid, Moscow, New York, Africa, Asia, China, India, Japan, America, Australia, heaven, hell, Atlantis, space, outer space, yesterday, tomorrow, another planet, another galaxy, Mount Everest, nowhere, everywhere, infinity
""")
PROPER_PLACES = frozenset(_words("""
Mars, Venus, Saturn, Jupiter, Pluto, Paris, Tokyo, London, Berlin, Rome, Madrid, Moscow, New York, Africa, Asia, China, India, Japan, America, Australia, heaven, hell, Atlantis, space, outer space, yesterday, tomorrow, another planet, another galaxy, Mount Everest, nowhere, everywhere, infinity, planet Mars, planet Jupiter, planet Venus, planet Saturn
"""))
"""Far places that take no article."""
IMPOSSIBLE_ITEMS = _words("""
the moon, an elephant, a unicorn, the sun, a dinosaur, a mountain, the ocean, a rainbow, a dragon, my youth, happiness, yesterday's weather, a whale, the Eiffel Tower, a ghost, a star, a castle, an airplane, the sky, a live elephant, a pink elephant, a baby dragon, a real dragon, a young dragon, a blue whale, a baby whale, a baby elephant,
a whole mountain, a mountain of gold, the whole ocean, the whole sky, the whole moon, half the moon, a piece of the moon, a piece of the sun, a piece of the sky, the brightest star, the north star, a shooting star, all the stars, a live dinosaur, a baby dinosaur, a dinosaur egg, the king's castle, a whole castle, a flying castle, a haunted castle, a castle in the sky,
a ship, a submarine, a space ship, a rocket to the moon, a train, a whole train, a tank, a house, a whole house, a skyscraper, the rainbow, the end of the rainbow, a cloud, a black hole, a planet, the planet Mars, the earth, world peace, true love, love, luck, my childhood, my lost years, more time, the future, the past, yesterday, last summer, a good mood, a ghost story come true,
a live tiger, a tiger, a lion, a live lion, a bear, a live bear, a shark, a hippo, a giraffe, a live giraffe, a rhino, a mammoth, a live mammoth, a tree, an oak tree, a forest, a lake, the sea, a river, the wind, thunder, lightning, the truth, my soul, a miracle
""")
IMPOSSIBLE_ACTS = Phrases("""
    Fly [to the ceiling|up|over the wall|away].
    [Kill|Hurt|Hit|Attack|Bite] {person}.
    Break the [window|door|lamp].
    Jump out of the window.
    Swim across the lake.
    ~ Turn [invisible|into a car|water into wine].
    Set the [curtains|house|paper] on fire.
    Travel back in time.
    Eat [this sandwich|the apple|lunch].
    Lift the [house|car|building].
    Explode.
    Read my mind.
    Throw {person} out.
    ~ Make me [rich|young|invisible].
    Steal [the money|her phone|a car].
    Climb the wall.
    Predict the lottery numbers.
    Give birth.
    Turn yourself [invisible|into a plane|into a bird].
    Turn [this stone|lead|me] into [gold|a frog].
    Make [gold|rain|a baby|snow].
    Make me [a king|taller|famous].
    Make the [sun|moon|dog] disappear.
    Turn back time.
    Cut off my [finger|hair|head].
    Shoot {person}.
    Burn the [house|books|curtains].
    Marry me.
    Bring my grandfather back to life.
    Run a marathon.
    Jump over the [house|moon|fence].
    Disappear.
    Make the sun shine.
    Fly to the moon.
    Fly to the {far}.
    Fly home.
""")
REFUSE_ACT = Phrases("""
    I can't do that.
    That is not possible for me.
    I am not able to do that.
    Sorry, I can't do that.
    I will not do that.
    That is beyond my abilities.
""")
GOTO = Phrases("""
    Go to the {place}.
    Please go to the {place}.
    Drive to the {place}.
    Move to the {place}.
    Head [over |]to the {place}.
    ~ Can you go to the {place}?
    Could you drive to the {place}[, please|]?
    I need you in the {place}.
    Come to the {place}.
    You're needed in the {place}.
    Go and check the {place}.
    To the {place}!
    Get yourself to the {place}.
    ~ Make your way to the {place}.
    Would you go to the {place}?
    Roll over to the {place}.
    {Place}, please.
    Travel to the {place}.
    Navigate to the {place}.
    Meet me in the {place}.
    Robot, go to the {place}.
    ~ Take yourself to the {place}.
    Your next stop is the {place}.
    Let's go to the {place}.
    Can you drive to the {place}?
    Can you come to the {place}?
    Make your way over to the {place}.
    Find your way to the {place}.
    Take the way to the {place}.
    Take a trip to the {place}.
    Take a look at the {place}.
    Get to the {place}.
    Could you go to the {place}?
    Go over to the {place}.
    Please move to the {place}.
    I want you to go to the {place}.
    You should go to the {place}.
    Go straight to the {place}.
    Come over to the {place}.
    Please drive to the {place} now.
    The {place}!
    I am waiting in the {place}. Come here.
    Would you please come to the {place}?
    Return to the {place}.
""")
FETCH = Phrases("""
    Fetch {the_item}.
    Bring me {the_item}.
    Get me {the_item}[, please|].
    Please bring me {the_item}.
    Can you get {the_item}?
    ~ Could you fetch {the_item} for me?
    I need {the_item}.
    Pick up {the_item}.
    Grab {the_item}.
    Go and get {the_item}.
    I'd like {the_item}.
    Would you bring me {the_item}?
    Find {the_item} and bring it here.
    ~ Collect {the_item}.
    Hand me {the_item}.
    Robot, fetch {the_item}.
    Retrieve {the_item}.
    Can I have {the_item}?
    Could you get {the_item} for me?
    Could you bring me {the_item}?
    Could I have {the_item}?
    Would you fetch {the_item} for me?
    Go and collect {the_item}.
    Please collect {the_item} for me.
    Can you collect {the_item}?
    Get {the_item} for me.
    Fetch me {the_item}, please.
    Go get {the_item}.
    Can you bring {the_item}?
    Please get {the_item}.
    Bring {the_item} here.
    I want {the_item}.
    Please pick up {the_item}.
    {The_item}, please.
""")
DELIVER = Phrases("""
    Bring {the_item} to {dest}.
    Take {the_item} to {dest}.
    Deliver {the_item} to {dest}.
    Please carry {the_item} to {dest}.
    Can you bring {the_item} to {dest}?
    ~ Could you take {the_item} to {dest}?
    {Dest} needs {the_item}.
    Drop {the_item} off at {dest}.
    I want {the_item} brought to {dest}.
    Get {the_item} over to {dest}.
    Would you deliver {the_item} to {dest}?
    Move {the_item} to {dest}.
    {The_item} must go to {dest}.
    ~ Transport {the_item} to {dest}.
    Put {the_item} in {dest}.
    Robot, take {the_item} to {dest}.
    Hand {the_item} over to {dest}.
    Please see that {the_item} gets to {dest}.
    Could you bring {the_item} to {dest}?
    Could you deliver {the_item} to {dest}?
    Please transport {the_item} to {dest}.
    Can you transport {the_item} to {dest}?
    Carry {the_item} to {dest}.
    Please bring {the_item} to {dest}.
    Please take {the_item} to {dest}.
    Can you deliver {the_item} to {dest}?
    {The_item} has to go to {dest}.
    Bring {dest} {the_item}.
    {The_item} is for {dest}.
    Go and bring {the_item} to {dest}.
""")
FOLLOW = Phrases("""
    Follow {person}.
    Please follow {person}.
    Go with {person}.
    Can you follow {person}?
    Stay with {person}.
    ~ Accompany {person}.
    Keep close to {person}.
    Walk behind {person}.
    Could you go along with {person}?
    Follow {person} around.
    Tag along with {person}.
    Stick with {person}.
    Can you accompany {person}?
    Please accompany {person} for a while.
    Accompany {person}, please.
    Come with {person}.
    Go where {person} goes.
    Follow after {person}.
    Stay close to {person}.
    Go after {person}.
""")
CLEAN = Phrases("""
    Clean the {place}.
    Please clean the {place}.
    The {place} is dirty.
    Can you clean up the {place}?
    Vacuum the {place}.
    ~ Mop the floor in the {place}.
    Sweep the {place}.
    Somebody spilled something in the {place}.
    Tidy up the {place}.
    The floor in the {place} needs cleaning.
    There's a mess in the {place}.
    Wipe the floor of the {place}.
    Could you mop the {place}?
    ~ Make the {place} clean again.
    Scrub the {place}.
    The {place} could use a clean.
    Get the {place} clean, please.
    Do the {place} next, it's filthy.
    Make the {place} clean.
    Make the {place} shine again.
    Clean the {place} again.
    The {place} must be clean.
    The {place} needs cleaning again.
    Wash the floor of the {place}.
    Please vacuum the {place}.
    Can you mop the {place}?
    Go and clean the {place}.
    The {place} is a mess.
    I want the {place} clean.
    Please tidy up the {place}.
""")
WAIT = Phrases("""
    Wait {duration}.
    Wait for {duration}.
    Please wait {duration}.
    Stay here for {duration}.
    Pause for {duration}.
    ~ Hold on for {duration}.
    Can you wait {duration}?
    Don't move for {duration}.
    Give me {duration}.
    Stand by for {duration}.
    Rest for {duration}.
    Wait here {duration}, please.
    Hold still for {duration}.
    Hold on {duration}.
    Please hold on for {duration}.
    Can you hold on for {duration}?
    Stay for {duration}.
    Wait there for {duration}.
    I need {duration}. Wait.
""")
WAIT_HERE = Phrases("""
    Wait.
    Wait here.
    Please wait a bit.
    Stay here.
    Hold on.
    ~ Stay where you are.
    Don't go away.
    Wait for me.
    Stand by.
    Just a moment.
    Remain here.
    Stay put.
    Stay here where you are.
    Wait where you are.
    Stay there.
    Wait right here.
    Stay in this place.
    You are to wait here.
    Please stay where I can see you.
    Hold it, wait.
""")
STOP = Phrases("""
    Stop!
    Stop.
    Halt!
    Stop right now.
    Freeze!
    ~ Stop moving.
    Cancel that.
    Emergency stop!
    Abort.
    Stop what you are doing.
    Enough, stop.
    Don't move!
    Hey, stop!
    ~ Never mind, stop.
    Stand still!
    Forget it, stop.
    Whoa, stop!
    No, stop that!
    Stop moving now.
    Don't move any more, stop.
    Stop driving.
    Stop, never mind.
    Never mind that, stop.
    Stop, forget it.
    Stop this.
    Please stop.
    Stop it.
    Never mind. Stop what you're doing.
""")
CHARGE = Phrases("""
    Go charge.
    Charge your battery.
    Return to your dock.
    Your battery is low.
    Go back to the charging station.
    ~ Please recharge.
    Go home and charge.
    You should charge now.
    Dock yourself.
    Time to recharge.
    Plug yourself in.
    Get some power.
    Back to your charger.
    ~ You look low on power.
    Go and load your battery.
    Return to base and charge.
    Recharge yourself.
    Power up at your station.
    Please go and recharge.
    Please charge your battery.
    Please recharge your battery.
    Your power is low.
    You are low on battery.
    You look tired. Recharge.
    Your battery looks low. Charge it.
    Go to your charger.
    Go to the charging station.
    Charge yourself.
    You need to charge.
    Your battery is almost empty.
    Your battery is nearly empty.
    You are running out of power.
    You are running low.
    Go home to your dock.
    Go to your dock.
    Drive back to your dock.
    Load up your battery.
""")
SAYS = {
    "goto": Phrases("On my way to the {place}.\nGoing to the {place}.\nHeading to the {place}.\nI am driving to the {place} now.\nOkay, the {place}."),
    "fetch": Phrases("I will get {item_said}.\nFetching {item_said}.\nOne moment, I am getting {item_said}.\nI will bring you {item_said}.\nOkay, {item_said}."),
    "deliver": Phrases("I will bring {item_said} to {dest_said}.\nDelivering {item_said} to {dest_said}.\nTaking {item_said} to {dest_said}.\nOkay, {item_said} goes to {dest_said}."),
    "follow": Phrases("I am following {person_said}.\nRight behind {person_said}.\nOkay, I will follow {person_said}.\nI will stay close to {person_said}."),
    "clean": Phrases("I am cleaning the {place}.\nCleaning the {place} now.\nThe {place} will be clean soon.\nOkay, I will clean the {place}."),
    "wait": Phrases("Waiting {duration}.\nI will wait {duration}.\nOkay, {duration}."),
    "wait_here": Phrases("I am waiting here.\nI will wait.\nStanding by.\nOkay, I stay here."),
    "stop": Phrases("Stopping.\nI have stopped.\nStopped.\nOkay, I stop."),
    "charge": Phrases("Going to charge.\nReturning to my dock.\nI am going to recharge.\nOkay, I will charge now."),
    "refuse_place": Phrases("I can't reach the {place}.\nI don't know the way to the {place}.\nThe {place} is not on my map.\nSorry, I can't go to the {place}.\nThere is no {place} on my map."),
    "refuse_item": Phrases("I can't bring {item_said}.\nI don't have {item_said}.\nSorry, I can't get {item_said}.\nThere is no way for me to bring {item_said}."),
    "hello": Phrases("Hello.\nHello, how can I help?\nHi, I am {robot}.\nGood day. What can I do?\nHello. I am ready."),
    "thanks": Phrases("You're welcome.\nGlad to help.\nAny time.\nMy pleasure."),
    "name": Phrases("I am {robot}.\nMy name is {robot}.\nThey call me {robot}.\n{robot}, at your service."),
    "battery": Phrases("My battery is at {battery} percent.\n{Battery} percent.\nI have {battery} percent left.\nThe battery is at {battery} percent."),
    "where": Phrases("I am in the {here}.\nIn the {here}.\nI am in the {here} right now.\nMy position is the {here}."),
    "can": Phrases("I can drive, fetch, deliver, follow, clean and wait.\nI fetch and deliver things.\nI can go to places, bring things and clean."),
    "places": Phrases("I know the {places}.\nI can go to the {places}.\nMy map has the {places}."),
    "unknown": Phrases("I don't know.\nI don't know that.\nI have no data on that.\nSorry, I don't know."),
}
QUESTIONS = {
    "hello": Phrases("Hello.\nHi robot.\nGood morning.\nHey.\nHello {robot}.\n~ Hi there.\nGood evening.\nAre you there?\nHello, robot!\nHey {robot}.\nGreetings.\nGood day.\nHello, I'm {user}.\nGood evening, my name is {user}.\nHi, I am {user}.\n*waves a hand*\n*nods and bows*\n*waves and nods*\n*bows and waves*\n*nods at you*\n*smiles*\nHello, {trade}.\nGood morning, {self}.\nGood evening, {trade}.\nHello again.\nWhat's up?\nWelcome.\nOh, hello.\nGood afternoon, {self}.\nHello there.\nHey, how are you?\nGood afternoon."),
    "thanks": Phrases("Thank you.\nThanks.\nGood job.\nWell done.\nGood robot.\n~ Thanks a lot.\nNice work.\nGreat.\nPerfect, thank you.\nThat was fast.\nThank you, {robot}.\nMuch appreciated.\nYou have been a great help.\nYou've been very kind.\nThat was a great help.\nYou helped me a lot.\nYou have been most helpful.\nGreat, thank you.\nThank you so much.\nThanks, that's great.\nCheers.\nI thank you.\nBless you.\nThank you, {self}.\nThanks so much.\nThank you a lot.\nYou did a good job.\nThat was great.\nYou helped me a lot.\nGood work."),
    "name": Phrases("What is your name?\nWho are you?\nWhat are you called?\nDo you have a name?\nWhat should I call you?\n~ Tell me your name.\n~ Your name?\nWhat's your name?\nWhich robot are you?\nIdentify yourself.\nName?\nHow are you called?\nWhat do people call you?\nHow do they call you?\nDo they call you something?\nTell me who you are.\nWhat name do you go by?\nSay your name.\nCan you tell me your name?\nI want to know your name.\nI don't know your name.\nSo who are you?\nWho am I speaking to?\nWhat was your name again?\nWho is it?\nWho are you, stranger?\nYour name, please.\nWhat is your full name?\nAnd your name is?"),
    "battery": Phrases("How is your battery?\nWhat is your battery level?\nHow much battery do you have?\nBattery status?\nHow much power is left?\n~ Are you charged?\nIs your battery full?\nBattery level?\nReport your battery.\nHow full is your battery?\nDo you have enough power?\nTell me your charge.\nAre you fully charged?\nIs your battery charged?\nAre you low on battery?\nHow charged are you?\nWhat is your charge level?\nWhat is the charge of your battery?\nHow much charge do you have?"),
    "where": Phrases("Where are you?\nWhat is your position?\nWhich room are you in?\nTell me where you are.\nYour location?\n~ In which room are you?\nWhere are you right now?\nReport your position.\nWhat's your location?\nCan you tell me where you are?\nWhere do you stand?\nWhich place are you at?\nIn what room are you?\nWhat room are you in?\nWhere are you now?\nTell me your position.\nWhat is your location?"),
    "can": Phrases("What can you do?\n~ How can you help me?\nWhat are you able to do?\nTell me what you can do.\nWhat are your functions?\n~ What are you for?\nHow do you help?\nWhat is your job?\nWhat are your skills?\nWhat do you do?\nHelp.\nWhat commands do you know?\nWhat are you good for?\nWhat are you made for?\nWhat can you do for me?\nWhat are you able to do for us?\nWhat is your purpose?\nWhat tasks can you do?"),
    "places": Phrases("Which places do you know?\nWhere can you go?\nWhat rooms do you know?\nWhich rooms are on your map?\nWhat places can you reach?\n~ List your rooms.\nWhat's on your map?\nTell me the places you know.\nWhere can you drive?\nWhich rooms can you go to?\nName your places.\nWhat destinations do you have?\nList your places.\nList the rooms on your map.\nList all rooms.\nWhat are your places?\nName the rooms you know.\nTell me your rooms."),
    "unknown": Phrases("What time is it?\nWho is the president?\nWhat will the weather be?\nHow old am I?\nWhat is my phone number?\n~ Where is my wallet?\nWho won the match?\nWhat is the meaning of life?\nHow many people work here?\nWhen does the bus come?\nWho built you?\nWhat did I eat yesterday?\nWhat's the stock price?\n~ How far is the moon?\nWhere is my phone?\nWhere is my car?\nWhere are my keys?\nHow far is the next town?\nHow far is the sun?\nHow high is the moon?\nWhat day is it?\nWho is the boss here?\nWhen is lunch?\nWhat is the answer?\nWhere is my dog?\nHow much money do I have?"),
}
PROMPTS = Phrases("""
    You are {a_robot}. Answer with one JSON action.
    You are {robot}, {a_robot}. Answer with one JSON action.
    You are {robot}, {a_robot} in {site}. Reply with one JSON action.
    You are {a_robot} called {robot}. Reply only with JSON.
    You control {a_robot} named {robot}. Answer every message with one JSON object.
    You are {robot}, {a_robot}. Output one JSON action.
    You are {a_robot} in {site}. Your name is {robot}. Answer in JSON with action, target and say.
    You are {a_robot}. Your name is {robot}. Always answer with a single JSON action.
    {robot} is {a_robot} in {site}. It answers with one JSON action.
    You are {robot}, a mobile robot. Reply with a JSON action.
    You are {a_robot} named {robot} and you answer with JSON actions.
    You are {a_robot}. Respond with exactly one JSON action.
""")
PLACES_LINE = Phrases("""
    You know these places: {list}.
    Places: {list}.
    Rooms: {list}.
    You can go to: {list}.
    Your map has: {list}.
    Known places: {list}.
    You can reach the {list_and}.
    There are these rooms: {list}.
    Targets: {list}.
    The rooms are {list_and}.
""")
ITEMS_LINE = Phrases("""
    You can carry: {list}.
    Items: {list}.
    Things you can bring: {list}.
    Available items: {list}.
    The following things are in stock: {list}.
    You can fetch the {list_and}.
""")
STATE_LINE = Phrases("""
    You are in the {here}.
    You are in the {here} now.
    Location: {here}.
    Your position is the {here}.
""")
BATTERY_LINE = Phrases("""
    Your battery is at {battery} percent.
    Battery: {battery} percent.
    Your battery has {battery} percent left.
    Battery: {battery}%.
""")
ACTIONS_LINE = Phrases("""
    Actions: {actions}.
    Allowed actions: {actions}.
    The action is one of {actions}.
    Possible actions are {actions}.
""")
KINDS = _words("courier robot, service robot, delivery robot, cleaning robot, hospital robot, hotel robot, warehouse robot, office robot, household robot, kitchen robot, mobile robot, robot, helper robot, transport robot, lab robot, robot butler, museum robot, security robot")
SITES = _words("an office, a hospital, a hotel, a warehouse, a house, a museum, a school, a factory, a lab, an airport, a library, a restaurant, a space station, a farm")
DURATIONS = _words("{n} seconds, {n} minutes, {n} hours, a minute, a moment, an hour, half an hour, ten seconds, two minutes")
ROBOT_NAMES = _words("Pip, Robo, R2, Dash, Bolt, Rusty, Beep, Max, Nova, Scout, Ada, Turing, Chip, Gizmo, Unit 7, RX-4, Echo, Otto, Rover, Tin, Pixel, Hopper, Sparky, B-12, Atlas, Milo, Kiwi, Zip")
