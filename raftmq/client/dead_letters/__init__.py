"""Dead letters of consumer groups: records that a group has set aside."""
