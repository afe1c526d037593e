#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "hawser/transport/descriptor.h"

// Small notes with descriptors over a UNIX stream socket. Neither call blocks.
namespace hawser::transport::shm {

// The most that travel with one note.
inline constexpr std::size_t kMostDescriptors = 4;

// False when the socket does not take it; errno says why.
bool send_note(int socket, std::span<const std::byte> note, std::span<const int> descriptors);

enum class NoteReceived { Note, Nothing, End };
// Takes a note of exactly this size. Throws Error(Invalid) when something else is there, and
// Error(Overloaded) when its descriptors could not be taken because this process has too many.
NoteReceived receive_note(int socket, std::span<std::byte> note,
                          std::vector<Descriptor>& descriptors);

}  // namespace hawser::transport::shm
