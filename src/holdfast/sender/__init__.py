"""The producer's side: frames are handed over, kept, sent in order, and dropped when a server has acknowledged them.

Promise: a producer never waits for the network. What it handed over survives its process when there is a slot
directory, and a power cut as `sf_durability` says; it is sent in FSN order, under an identity by which a server
recognises a replay; and at the cap the producer waits, then gets an error that says why.

| file | purpose |
|---|---|
| sender.py | `Sender`: hand over, flush, wait, close |
| asyncsender.py | `AsyncSender`: the same for asyncio |
| loghandler.py | log records of a program as events |
| rows.py | rows to columns; clashes of types are found when they come |
| pending.py | what is in no frame yet |
| encoding.py | data to Arrow, Arrow to frames of a bounded size |
| flusher.py | the timer that flushes |
| ackbook.py | who waits for which frame; which were refused |
| core.py | the connection loop without the connection: what to do, what each answer means |
| hosts.py | which server of the list to try next |
| poison.py | telling a frame that ends connections from a server that is ill |
| durableacks.py | acceptances that wait until the object store has them |
| link.py | the I/O thread: carries out what the core decides |
| dialing.py | getting a connection, and what each answer to the upgrade means |
| orphans.py | slots of dead senders: found, sent, emptied |
| errorinbox.py | bounded inboxes in front of handlers |
| happenings.py | what handlers are told: errors of servers, events of the connection |
| statistics.py | a sender at one moment |
| metrics.py | the same as metrics; for OpenTelemetry |
| prometheus.py | for Prometheus |
| connectstring.py | the grammar `schema::key=value;…` |
| keys.py | one row of the table of keys: how a value is written, read, bounded; addresses |
| conf.py | every key with its default and reason: `SenderConfig` |
| foreignkeys.py | keys of other clients, and why they are refused |
| confpage.py | the connect string's page |
| __main__.py | prints it |
| policies.py | what is done with a frame that a server refused |
| substrate.py | the words that rings, segments and what keeps them share |
| ring.py | the ring between producers and the wire: append, sync, acknowledge, trim, wait |
| fate.py | whether a ring still works; errors of the disk in our words |
| cursor.py | reading a ring in order while others change it |
| memory.py | what is behind a ring without a directory |
| slot.py | what is behind a ring with one: lock, files, the order of every step |
| recovery.py | what a slot holds after a crash, and setting it right |
| segment.py | the SF01 file of frames |
| watermark.py | `.ack-watermark`: how far a server acknowledged |
| identity.py | `.slot-id`: under which ids frames are known; why no pair of id and FSN is ever used twice |
| rejected.py | dead letters: copies of frames that were refused for good |
| manifest.py | `sf-manifest.bin` of other clients' slots |
| symboldict.py | `.symbol-dict` of other clients' slots |
| dualrecord.py | the form of watermark and manifest: two records, the newest valid one counts |
| opening.py | from settings to a ring |

What sends relies on this, and on nothing else of it:

- `open_ring(config, link_state=…)` gives the sender's `Ring`; `open_to_drain(directory, config)` one of a dead
  sender. `link_state` says whether a full ring is to be blamed on an outage.
- `ring.append(parts, stamp)` publishes an encoded frame: `stamp(view, fsn)` writes `ring.slot_id` and the FSN into
  its first part. With `sf_durability=flush`, `flush()` ends with `ring.sync(fsn)`.
- `ring.cursor(ring.acked_fsn + 1)` after every connect; `cursor.next()` gives `Frame(fsn, payload)` or None, and
  then `ring.on_published` is called once there is one. Payloads may be sent at leisure: nobody unmaps them.
- `ring.session_of(fsn)`: the slot id for the upgrade request of frames that carry none, and where another id begins:
  connect again there.
- `ring.acknowledge(fsn)` with frames fully sent, never more. `ring.reject(Rejection(…))` instead for frames given
  up.
- `ring.halt(error)` tells every producer of a terminal error; `ring.wait_acked(fsn, timeout)` serves `drain`.
- `ring.close()` is True when nothing is left to send. Close cursors first.
"""
