// Colours of curves: the first is the accent; all can be told apart on light and dark paper.
const palette = ['#d9621e', '#2f7fc1', '#2f9e6e', '#a65fc4', '#c9a227', '#c94f6d', '#4aa3a3', '#7d7468'];

export const colour_of = (i: number) => palette[i % palette.length]!;
