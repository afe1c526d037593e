"""Reinforcement learning with actors and a learner.

    python actor_learner.py [--actors 2] [--updates 150]

Actors play a corridor with the learner's newest policy and send what they saw; the learner improves
the policy (REINFORCE) and hands it out. An actor that dies is noticed at once and does not stop the
others: start with --lose-one to see it.
"""

import argparse
import multiprocessing
import os
import signal

import torch

import hawser

RENDEZVOUS = "tcp://127.0.0.1:29513"
LENGTH = 6  # of the corridor: start at 0, the goal is at the other end


def play(
    policy: torch.Tensor, episodes: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """States, actions, discounted returns, and the mean number of steps."""
    states, actions, returns, steps = [], [], [], 0
    for _ in range(episodes):
        at, seen = 0, []
        while at != LENGTH - 1 and len(seen) < 40:
            action = int(torch.multinomial(torch.softmax(policy[at], 0), 1))
            seen.append((at, action))
            at = max(0, at + (1 if action else -1))
        reward = 1.0 if at == LENGTH - 1 else 0.0
        for i, (state, action) in enumerate(seen):
            states.append(state)
            actions.append(action)
            returns.append(reward * 0.9 ** (len(seen) - 1 - i))
        steps += len(seen)
    return torch.tensor(states), torch.tensor(actions), torch.tensor(returns), steps / episodes


def act(name: str, doomed: bool) -> None:
    with hawser.Node(name, RENDEZVOUS):
        if doomed:
            signal.setitimer(signal.ITIMER_REAL, 0.2)  # the end of this process, without a word
        signal.sigwait({signal.SIGTERM})


def learn(actors: list[str], updates: int) -> None:
    policy = torch.zeros(LENGTH, 2, requires_grad=True)
    optimizer = torch.optim.Adam([policy], lr=0.1)
    steps = 0.0
    with hawser.Node("learner", RENDEZVOUS, rank=0) as node:
        for update in range(updates):
            games = {name: node.call(name, play, policy.detach(), 4) for name in actors}
            for name, game in games.items():
                try:
                    states, actions, returns, steps = game.wait()
                except hawser.PeerLost:
                    print(f"update {update}: {name} is gone; going on with {len(actors) - 1}")
                    actors = [other for other in actors if other != name]
                    continue
                chosen = torch.log_softmax(policy[states], 1).gather(1, actions[:, None])[:, 0]
                loss = -(chosen * (returns - returns.mean())).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if update % 50 == 49:
                print(
                    f"update {update + 1}: {steps:.1f} steps to the goal (the least is {LENGTH - 1})"
                )
    assert steps < LENGTH + 1, "the policy should have learnt to walk straight"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--lose-one", action="store_true")
    options = parser.parse_args()
    names = [f"actor{i}" for i in range(options.actors)]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # inherited: actors wait for it
    context = multiprocessing.get_context("spawn")
    actors = [
        context.Process(target=act, args=(name, options.lose_one and name == names[-1]))
        for name in names
    ]
    for actor in actors:
        actor.start()
    try:
        torch.manual_seed(0)
        learn(names, options.updates)
    finally:
        for actor in actors:
            if actor.pid and actor.is_alive():
                os.kill(actor.pid, signal.SIGTERM)
            actor.join(10)


if __name__ == "__main__":
    main()
