"""Word lists: hand-written vocabulary of the two settings."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]


FIRST_NAMES = _words("""
Greta, Odo, Marta, Borin, Tomas, Elsa, Rolf, Anselm, Bertram, Cedric, Dorin, Edda, Finn, Gerda, Harald, Ilsa, Jorun, Katrin,
Lena, Magnus, Nils, Olga, Petra, Quentin, Rosa, Sigrid, Theo, Ulf, Vera, Willem, Yara, Zelda, Agnes, Bruno, Clara, Dietrich,
Emil, Freya, Gunnar, Hilda, Ingrid, Jasper, Karl, Linnea, Mirko, Nora, Oswin, Pia, Ragna, Sven, Tilda, Una, Viktor, Wanda, Alda,
Bran, Corin, Dara, Eamon, Fiona, Garrick, Hazel, Ivo, Jana, Kester, Lorna, Mabel, Nadia, Orla, Percy, Rowan, Selma, Tobias, Ursula,
Wilma, Anna, Ben, Carl, Dora, Eva, Frank, Hugo, Ida, Jack, Kate, Leo, Mia, Ned, Oskar, Paul, Rita, Sam, Tom, Will, Zoe, Mira, Alice, Bob,
Lyra, Kael, Brom, Thora, Aldric, Berta, Cora, Dag, Elric, Fenna, Gideon, Hedda, Isolde, Joss, Kira, Lukas, Maren, Niko, Otto, Pim, Runa,
Silas, Tessa, Udo, Vito, Wren, Yorick, Aria, Bjorn, Cassia, Duncan, Esme, Flora, Gwen, Halvor, Iris, Juno, Kurt, Lothar, Mona, Noel
""")
NAME_STARTS = _words("""
Al, An, Ar, Bal, Bar, Bel, Ber, Bor, Bra, Bri, Cal, Car, Cel, Cor, Dal, Dan, Dar, Del, Dor, Dra, Dun, Ed, El, Em, Er, Est, Fal, Far, Fen, Fer,
Gal, Gar, Gel, Gor, Gri, Hal, Har, Hel, Her, Hil, Hor, Il, In, Is, Jal, Jar, Jor, Kal, Kar, Kel, Kor, Kra, Lan, Lar, Lin, Lor, Lu, Mal, Mar,
Mel, Mer, Mor, Nal, Nar, Nel, Nor, Ol, Or, Os, Pal, Per, Quil, Ral, Ran, Rel, Ro, Sal, Sar, Sel, Ser, Sha, Tal, Tar, Tel, Thal, Thor, Tor, Ul, Ur, Val,
Var, Vel, Vor, Wal, Wen, Wil, Yar, Yel, Zal, Zan, Zer, Xan, Ky, Be, Do, Ga, Ki, Ma, Ne, Pe, Ru, Si, Ti, Vi, Wa, Zo, Ja, Fi, Gu, Hu, Jo
""")
NAME_MIDDLES = _words("a, e, i, o, u, an, en, in, on, ar, er, ir, or, al, el, il, ia, ea, da, de, di, ga, la, le, li, lo, ma, mi, na, ne, ni, ra, re, ri, ro, sa, se, ta, te, ti, va, vi, za")
NAME_ENDS = _words("""
bert, bor, da, dan, dis, dor, dra, dric, dur, fred, ga, gar, gard, gil, gor, gund, ia, ias, ik, il, in, ina, ine, ir, is, ka, kar, ken, la, las, lin, lor,
mar, mir, mund, na, nar, nel, nia, nik, nor, nus, ra, ran, rek, rel, ren, ric, rik, rin, ris, ron, ros, sel, sha, son, ta, tan, tar, th, thas, ton, tor, tus, us, va, van, var, vin, wen, win, wyn, za, zan, zo,
by, ck, do, go, ke, lo, mo, ny, pa, sy, to, ve
""")
SURNAMES = _words("""
Ashdown, Blackwood, Brightwater, Coalhand, Copperpot, Crowfoot, Dunmore, Fairweather, Flint, Goodbarrel, Greycloak, Halfhand, Hawthorn, Hollow, Ironfist,
Longstride, Marsh, Millward, Oakheart, Proudfoot, Redbeard, Rook, Saltmarsh, Smith, Stone, Stormcrow, Thatcher, Tanner, Underhill, Weaver, Whitlock, Wolfe, Wick, Barrow, Quickfoot
""")
TITLES = _words("Old, Captain, Mother, Father, Sergeant, Brother, Sister, Master, Mistress, Young, Uncle, Auntie, Lady, Lord, Doctor, Big, Little")

PLACE_STARTS = _words("""
Ember, Oak, Ash, Black, White, Grey, Red, Green, Gold, Silver, Iron, Copper, Stone, River, Lake, Moon, Sun, Star, Storm, Winter, Summer, Spring, Raven, Wolf, Bear, Fox,
Hawk, Eagle, Swan, Deer, Elk, Salt, Sand, Mist, Fog, Frost, Snow, Rain, Wind, Thorn, Rose, Willow, Birch, Elm, Pine, Maple, Alder, Bramble, Fern, Moss, Clay, Mill, Bridge,
Gate, Tower, King, Queen, Bishop, North, South, East, West, High, Low, Long, Deep, Dun, Hollow, Bright, Dark, Cold, Kettle, Barley, Rye, Honey, Otter, Crow, Harrow, Amber, Crystal, Drake, Cinder
""")
PLACE_ENDS = _words("""
fall, ford, wick, mere, dale, field, wood, ton, ham, bury, brook, bridge, haven, port, moor, marsh, hill, ridge, cliff, crest, gate, hold, keep, watch, ward, well, water,
stead, ley, low, den, hollow, cross, stone, shire, mouth, bay, point, reach, run, vale, grove, glen, march, fell, burn, by, thorpe, minster, rock
""")
PLACE_SHAPES = _words("Port {x}, Fort {x}, {x} Bridge, {x} Crossing, Castle {x}, Upper {x}, Lower {x}, Old {x}, New {x}, Saint {x}, {x} Harbour, {x} Hill")

TRADES: dict[str, list[str]] = {
    "smith": _words("smith, blacksmith, armourer, weaponsmith, farrier, tinker, locksmith, goldsmith, swordsmith"),
    "innkeeper": _words("innkeeper, barkeeper, tavern keeper, brewer, cook, barmaid, landlord, cellar master"),
    "guard": _words("guard, gate guard, watchman, soldier, sentry, captain of the watch, knight, gatekeeper, bailiff"),
    "herbalist": _words("herbalist, healer, apothecary, alchemist, midwife, wise woman, potion maker, hedge witch"),
    "bard": _words("bard, minstrel, fiddler, storyteller, singer, poet, flute player, jester"),
    "traveller": _words("traveller, pilgrim, wanderer, sailor, explorer, ranger, hunter, courier, scout, mercenary"),
    "child": _words("child, stable boy, errand girl, street urchin, kitchen boy, orphan"),
    "merchant": _words("merchant, trader, pedlar, shopkeeper, spice seller, cloth seller, fishmonger, butcher, baker, jeweller, bookseller, horse dealer, wine seller, general trader"),
    "farmer": _words("farmer, shepherd, miller, beekeeper, gardener, woodcutter, fisherman, goatherd, vintner, charcoal burner"),
    "scholar": _words("scholar, priest, monk, librarian, scribe, wizard, mapmaker, astronomer, schoolteacher, clerk"),
    "crafter": _words("carpenter, potter, weaver, tailor, cobbler, mason, tanner, candlemaker, rope maker, glassblower, cooper, wheelwright, shipwright, saddler, bookbinder"),
    "robot": _words("service robot, courier robot, repair robot, guide robot, robot butler, cleaning robot, museum robot, delivery robot"),
    "engineer": _words("mechanic, pilot, engineer, dock worker, ship's captain, quartermaster, miner, clockmaker, ferryman"),
}

WARES: dict[str, list[str]] = {
    "smith": _words("horseshoe, bag of nails/nails, iron sword, dagger, axe, hammer, shield, helmet, kitchen knife, pair of tongs/tongs, plough blade, steel breastplate, lock, iron pot, chain, spearhead, sickle, arrowhead, lantern hook, door hinge, cauldron, brass key, poker"),
    "innkeeper": _words("mug of ale/ale, cup of wine/wine, bowl of stew/stew, room for the night/rooms, hot meal, roast chicken, loaf of bread/bread, wheel of cheese/cheese, mug of cider/cider, bed for the night/beds, bowl of soup/soup, meat pie, tankard of mead/mead, plate of sausages/sausages, hot bath, apple tart, barrel of beer/beer"),
    "guard": _words("gate pass, travel permit, spare spear, whistle, old helmet, night lantern"),
    "herbalist": _words("healing potion, bundle of sage/sage, jar of honey/honey, sleeping draught, fever tea/fever tea, burn salve, cough syrup/cough syrup, mint tea/mint tea, love potion, wart cream/wart cream, bunch of lavender/lavender, antidote, dried mushroom, bottle of ink/ink, charm against nightmares/charms, root tonic, willow bark/willow bark"),
    "bard": _words("song, ballad, poem, dance lesson, wooden flute, love letter, lute string, tall tale, songbook"),
    "traveller": _words("map, wolf pelt, fur cloak, foreign coin, walking stick, compass, bear hide, rabbit skin, waterskin, bundle of rope/rope, sea shell, carved idol"),
    "child": _words("shiny stone, wooden top, paper boat, frog, slingshot, bunch of daisies/daisies, kite, marble"),
    "merchant": _words("silk scarf, bag of salt/salt, jar of pepper/pepper, bolt of cloth/cloth, silver ring, mirror, oil lamp, rug, glass bead, bottle of perfume/perfume, box of tea/tea, candle, leather bag, comb, pair of boots/boots, wool blanket, salted fish/salted fish, leg of ham/ham, sweet bun, book of maps/books, pearl necklace, grey mare, bottle of olive oil/olive oil, sack of rice/rice, tin cup, umbrella"),
    "farmer": _words("sack of flour/flour, basket of apples/apples, dozen eggs/eggs, jug of milk/milk, pumpkin, pound of butter/butter, cabbage, goat, lamb, hen, bundle of firewood/firewood, string of onions/onions, honeycomb, pot of cream/cream, bushel of barley/barley, trout, goat cheese/goat cheese, piglet"),
    "scholar": _words("book, scroll, map of the stars/star maps, blessing, letter, reading lesson, quill, prayer candle, holy medal, spell scroll, inkwell, almanac"),
    "crafter": _words("chair, table, clay jug, wool coat, pair of shoes/shoes, barrel, candle, coil of rope/rope, glass bottle, cart wheel, saddle, leather belt, stool, bucket, linen shirt, wooden spoon, tile, oak chest, straw hat, basket, cradle"),
    "robot": _words("guided tour, spare part, battery, bottle of oil/oil, data chip, repair kit, antenna"),
    "engineer": _words("ride across the river/rides, spare part, lump of coal/coal, pocket watch, pulley, fuel cell, oil can, boat ticket, copper wire/copper wire, pickaxe, gear, lantern, repair kit, battery"),
}
WARE_QUALITIES = _words("""
iron, steel, wooden, silver, golden, small, large, old, fine, plain, blue, red, green, black, white, painted, carved, heavy, light, magic, broken, used, polished,
lucky, long, short, round, curved, rusty, dwarven, elven, northern, royal, travel, hunting, winter, double, cheap, enchanted, bronze, leather
""")
INVENTED_WARE_KINDS = _words("root, stone, oil, dust, brew, cake, blade, ring, charm, seed, berry, powder, crystal, cloak, lamp, horn, pie, potion, bell, shell, fruit, wine, bread, feather, dagger, necklace")
WARE_PARTS = _words("bla, cro, dri, fle, gli, gro, ka, kle, lu, mi, mo, ne, no, pli, pra, que, ri, ro, sa, ske, sli, sta, ta, tri, tru, vi, vo, wi, wo, ya, za, zi, bi, do, fu, ge, ha, je, ku, pe")
WARE_ENDS = _words("bble, ck, dle, ff, gg, ggle, ld, lk, ll, mble, mp, nd, ng, nk, nt, p, pple, rd, rk, rn, rt, sk, sp, st, t, th, tch, vik, x, zzle, m, n, r, d, l")

CURRENCIES = _words("silver, copper, gold, silver coins, gold coins, copper coins, gold pieces, silver pieces, coppers, crowns, pennies, marks, shillings, florins, ducats, credits, pence, coins, thalers")
NUMBER_WORDS = _words("zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty")

RELATIONS: dict[str, str] = {
    **dict.fromkeys(_words("brother, father, husband, son, uncle, nephew, grandfather"), "he"),
    **dict.fromkeys(_words("sister, mother, wife, daughter, aunt, niece, grandmother"), "she"),
    **dict.fromkeys(_words("friend, best friend, old friend, cousin, rival, neighbour, apprentice, teacher, partner, boss, master, landlord"), ""),
}

BEASTS = _words("wolves, bandits, goblins, bears, ghosts, trolls, giant rats, pirates, wild boars, spiders, thieves, dragons, crows, smugglers, deserters, foxes, lions, bats, ogres, vampires")
BUILDINGS = _words("mill, chapel, bridge, well, tower, market, harbour, temple, library, barn, graveyard, mine, town hall, inn, forge, school, bakery, castle, gate, lighthouse, bathhouse, stable, bank, prison, theatre, monastery, granary, warehouse, fountain, windmill")
BUILDING_QUALITIES = _words("old, north, south, east, west, new, ruined, stone, wooden, upper, lower, great, little, burned, haunted, hidden, red, white, royal, abandoned")
THINGS = _words("ring, sword, crown, map, lute, silver cup, necklace, ledger, key, hammer, prize goat, black horse, book of spells, music box, lucky coin, letter, golden egg, family seal, red hat, pocket watch, cow, ham, pearl, mirror, compass, cat, statue, bell, lantern, cloak")
SPOTS = _words("cellar, forest, old mine, river, swamp, attic, graveyard, ruins, hills, cave, harbour, market square, sewers, tower, orchard, hayloft, marsh, crypt, well, woods")
COLOURS = _words("red, blue, green, black, white, grey, yellow, brown, purple, golden, silver, scarlet")
DAYS = _words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, market day, the full moon, midsummer, tomorrow, the harvest, midwinter, spring, next week")
TIMES = _words("dawn, noon, dusk, midnight, sunrise, sunset, six, seven, eight, nine, ten, first light, nightfall, the ninth bell")
DIRECTIONS = _words("north, south, east, west, just north, just south, a day east, a day west, two miles north, an hour south, upriver, downhill")
OFFICIALS = _words("mayor, baron, king, queen, duke, tax collector, bishop, sheriff, miller, ferryman, magistrate, abbot, blacksmith, butcher, priest, captain, judge, governor, baker, harbour master")
LIKES = _words("dancing, honey cakes, fishing, card games, the smell of rain, old songs, chess, riddles, apple pie, horses, gold, poetry, quiet mornings, dogs, strong ale, stars, gossip, mushroom soup, the sea, snow, gambling, gardening, cats, a good fight, roses, puzzles, hunting, books, fresh bread, sleeping late, warm baths, cheese, sunsets, fried fish, singing")
FEARS = _words("spiders, the dark, deep water, ghosts, wolves, thunder, heights, snakes, fire, the sea, rats, geese, the tax collector, magic, bats, horses, bees, strangers, the forest, crowds, bears, dentists, old age, goblins, clowns, frogs, mirrors, mice, moths, dragons")
DRINKS = _words("ale, mulled wine, cider, mead, black tea, plum brandy, milk, dark beer, elderflower wine, rum, ginger beer, mint tea, goat milk, coffee, whisky, apple juice")
ANIMALS = _words("dog, cat, horse, goat, parrot, mule, raven, pony, donkey, hawk, ferret, owl, goose, pig, hound, rat, tortoise")
DREAMS = _words("see the sea, open an inn, buy a farm, become a knight, sail around the world, learn to read, own a ship, find a treasure, write a book, meet the queen, build a tower, climb the highest mountain, become mayor, retire by a lake, win the horse race, travel to the south, learn magic, keep bees, sing at court, brew the best beer in the land")
MATERIALS = _words("iron, wolf pelts, firewood, moon herbs, grapes, mushrooms, river clay, goose feathers, coal, leather, honey, silver ore, healing moss, wool, barley, red berries, candles, salt, bone needles, spider silk, pine resin, apples, fish, eggs")

NOUNS = _words("""
anchor, apron, arrow, basin, basket, beaker, bean, bed, bell, belt, bench, bicycle, blanket, board, boat, bolt, bone, boot, bottle, bowl, bracelet, branch, brick, brooch, broom, brush, bucket, buckle, button,
cabbage, cabinet, cage, candle, cannon, canoe, cap, cape, carpet, carriage, carrot, cask, chalk, chair, chest, chimney, chisel, clamp, clock, cloth, coat, coin, collar, comb, cork, corn, couch, crate, crayon, crib, crossbow, crown, crutch, cup, curtain, cushion,
desk, dial, dice, dish, doll, door, dress, drum, easel, egg, emerald, envelope, fan, fence, fiddle, file, flag, flask, flute, fork, fountain pen, frame, fur, gate, gem, glove, goblet, grain, grape, guitar, hairpin, hammock, handkerchief, handle, harness, harp, hat, hatchet, hay, helmet, herb, hinge, hoe, hook, hoop, hourglass,
ink pot, jacket, jar, jewel, jug, kettle, kite, knife, knot, ladder, ladle, lamp, lantern, leash, lemon, lens, lever, lid, lightbulb, log, loom, magnet, mallet, map, marble, mask, mat, mattress, medal, melon, mirror, mitten, mortar, mug, mushroom, nail, napkin, necklace, needle, net, nut, oar, onion, orange, oven, padlock, paint, pan, paper, parasol, peach, pear, pebble, pedal, pen, pencil, pendant, pepper, perfume, piano, pickle, pillow, pin, pipe, pistol, pitchfork, plank, plate, pliers, plum, pocket, pole, potato, pouch, pump, purse, puzzle, quilt, radio, radish, raft, rake, razor, ribbon, rifle, robe, rocket, rod, roof tile, rope, ruby, ruler,
sack, saddle, sail, salad, sandal, saucer, saw, scale, scarf, scissors, screw, shawl, sheet, shelf, shovel, sieve, skirt, sled, sleeve, slipper, soap, sock, sofa, spade, sponge, spoon, spring, spur, squash, stamp, stick, stirrup, stone, stove, strap, string, suitcase, sweater, switch, sword belt, tablet, tarp, tea pot, telescope, tent, thimble, thread, timber, tomato, tongs, tool, torch, toy, tray, trowel, trumpet, trunk, tunic, turnip, twig, valve, veil, vest, violin, waistcoat, wagon, walnut, wand, wardrobe, watch, wax, wheat, wheel, whip, wig, wire, wool, yarn, yoke,
antenna, bandage, barometer, brochure, bulb, cable, calculator, cassette, circuit board, clipboard, computer, disk, display, engine, filter, fuse, generator, headset, jack, keycard, monitor, motor, passport, pipette, plug, printer, receipt, router, scanner, sensor, syringe, thermometer, ticket, toaster, tripod, tube, vacuum, wallet, wristband
""")
